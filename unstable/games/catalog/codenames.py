"""Codenames: its teams, and what it takes as a clue or as a guess.

TextArena's flags no move as invalid.
"""

import re
from typing import Any

from unstable.games.info import GameInfo, Teams

SPYMASTERS = (0, 2)
_TEAMS = ((0, 1), (2, 3))  # Red and Blue
NUMBERS = range(1, 4)  # of words, in the clues that are listed


def clues_or_guesses(env: Any) -> list[str]:
    """A spymaster's clues, for 1 to 3 words; an operative's words that are left, and [pass].

    The env takes any other word too as a clue, and any number.
    """
    if env.state.current_player_id in SPYMASTERS:
        return [f"[{noun} {number}]" for noun in clues(env) for number in NUMBERS]
    return [*(f"[{word}]" for word in left_words(env)), "[pass]"]


def clues(env: Any) -> list[str]:
    """The game's own nouns that neither hold a word of the board nor are part of one.

    Such a clue would lose.
    """
    shown, holds = " ".join(env.board), re.compile("|".join(map(re.escape, env.board))).search
    nouns = dict.fromkeys(noun for noun in env.word_list if noun.isalnum())
    return [noun for noun in nouns if noun not in shown and not holds(noun)]


def left_words(env: Any) -> list[str]:
    """The words of the board that can be guessed: by now, and as a guess is read.

    That is in lower case, and "pass" as no guess.
    """
    left = (word for word in env.board if word not in env.state.game_state["guessed_words"])
    return [word for word in left if word == word.lower() != "pass"]


INFO = GameInfo(
    env="CodenamesEnv",
    name="Codenames",
    legal_moves=clues_or_guesses,
    teams=Teams(lambda env, seats: _TEAMS),  # each a spymaster and an operative
)
