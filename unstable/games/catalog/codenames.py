"""Codenames: its teams, and legal clues and guesses.

TextArena's env does not flag any move as invalid.
"""

import re
from typing import Any

from unstable.games.info import GameInfo, Teams

SPYMASTERS = (0, 2)
_TEAMS = ((0, 1), (2, 3))  # Red and Blue
NUMBERS = range(1, 4)  # number of words for a listed clue


def clues_or_guesses(env: Any) -> list[str]:
    """Return a spymaster's clues for 1 to 3 words, or an operative's remaining words and [pass].

    The env also accepts other words and numbers as clues.
    """
    if env.state.current_player_id in SPYMASTERS:
        return [f"[{noun} {number}]" for noun in clues(env) for number in NUMBERS]
    return [*(f"[{word}]" for word in left_words(env)), "[pass]"]


def clues(env: Any) -> list[str]:
    """Return the game's nouns that neither contain a word of the board nor are part of one.

    Other clues lose the game.
    """
    shown, holds = " ".join(env.board), re.compile("|".join(map(re.escape, env.board))).search
    nouns = dict.fromkeys(noun for noun in env.word_list if noun.isalnum())
    return [noun for noun in nouns if noun not in shown and not holds(noun)]


def left_words(env: Any) -> list[str]:
    """Return the words of the board that can still be guessed.

    The env reads guesses in lower case, and "pass" is no guess.
    """
    left = (word for word in env.board if word not in env.state.game_state["guessed_words"])
    return [word for word in left if word == word.lower() != "pass"]


INFO = GameInfo(
    env="CodenamesEnv",
    name="Codenames",
    legal_moves=clues_or_guesses,
    teams=Teams(lambda env, seats: _TEAMS),  # each a spymaster and an operative
)
