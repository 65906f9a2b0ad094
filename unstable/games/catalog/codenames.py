"""Codenames: its teams, what it takes as a clue or as a guess, and its rule bot.

TextArena's flags no move as invalid. Words are looked at as they are spelled, never for what they
mean.
"""

import re
from functools import lru_cache
from typing import Any

from unstable.games.catalog.rules import best
from unstable.games.info import Events, GameInfo, Probabilities, Teams

_SPYMASTERS = (0, 2)
_TEAMS = ((0, 1), (2, 3))  # Red and Blue
_NUMBERS = range(1, 4)  # of words, in the clues that are listed
_HARM = {"N": 1, "R": 2, "B": 2, "A": 3}  # of a guess that is none of the own words


def clues_or_guesses(env: Any) -> list[str]:
    """A spymaster's clues, for 1 to 3 words; an operative's words that are left, and [pass].

    The env takes any other word too as a clue, and any number.
    """
    if env.state.current_player_id in _SPYMASTERS:
        return [f"[{noun} {number}]" for noun in _clues(env) for number in _NUMBERS]
    return [*(f"[{word}]" for word in _left(env)), "[pass]"]


def _clues(env: Any) -> list[str]:
    """The game's own nouns that neither hold a word of the board nor are part of one.

    Such a clue would lose.
    """
    shown, holds = " ".join(env.board), re.compile("|".join(map(re.escape, env.board))).search
    nouns = dict.fromkeys(noun for noun in env.word_list if noun.isalnum())
    return [noun for noun in nouns if noun not in shown and not holds(noun)]


def _left(env: Any) -> list[str]:
    """The words of the board that can be guessed: by now, and as a guess is read.

    That is in lower case, and "pass" as no guess.
    """
    left = (word for word in env.board if word not in env.state.game_state["guessed_words"])
    return [word for word in left if word == word.lower() != "pass"]


def moves(env: Any, events: Events) -> Probabilities:
    """The rule bot's: a clue is for the words that are nearest to it in the alphabet.

    So the operative reads it; the spymaster gives one for as many of its side's words as it can.
    """
    state, seat, left = env.state.game_state, env.state.current_player_id, _left(env)
    if seat in _SPYMASTERS:
        return best(_scores(env, "RB"[seat // 2], left))
    if state["remaining_guesses"] == 1:  # one more is allowed than the clue is for
        return {"[pass]": 1.0}
    place = _place(state["last_clue"])
    return {f"[{min(left, key=lambda word: abs(_place(word) - place))}]": 1.0}


def _scores(env: Any, side: str, left: list[str]) -> dict[str, int]:
    """By clue how many words of the side are nearest to it, or the harm where another word is."""
    own = [_place(word) for word in left if env.board[word] == side]
    others = [(_place(w), _HARM[env.board[w]]) for w in left if env.board[w] != side]
    scores = {}
    for clue in _clues(env):
        at = _place(clue)
        distance, harm = min((abs(place - at), harm) for place, harm in others)
        meant = min(sum(abs(place - at) < distance for place in own), _NUMBERS[-1])
        scores[f"[{clue} {meant or 1}]"] = meant or -harm
    return scores


@lru_cache(maxsize=1 << 14)
def _place(word: str) -> float:
    """Where it is in the alphabet: a number whose digits are its letters."""
    return sum((ord(letter) - ord("a") + 1) / 27**digit for digit, letter in enumerate(word))


INFO = GameInfo(
    env="CodenamesEnv",
    name="Codenames",
    legal_moves=clues_or_guesses,
    teams=Teams(lambda env, seats: _TEAMS),  # each a spymaster and an operative
    rules=moves,
)
