"""Codenames' rule bot: words are near each other by how they are spelled, not by meaning."""

from functools import lru_cache
from typing import Any

from unstable.contrib.rules.textarena import best
from unstable.games.catalog.codenames import NUMBERS, SPYMASTERS, clues, left_words
from unstable.games.info import Events, Probabilities

_HARM = {"N": 1, "R": 2, "B": 2, "A": 3}  # of a guess that is none of the own words


def moves(env: Any, events: Events) -> Probabilities:
    """The rule bot's: a clue is for the words that are nearest to it in the alphabet.

    So the operative reads it; the spymaster gives one for as many of its side's words as it can.
    """
    state, seat, left = env.state.game_state, env.state.current_player_id, left_words(env)
    if seat in SPYMASTERS:
        return best(_scores(env, "RB"[seat // 2], left))
    if state["remaining_guesses"] == 1:  # one more is allowed than the clue is for
        return {"[pass]": 1.0}
    place = _place(state["last_clue"])
    return {f"[{min(left, key=lambda word: abs(_place(word) - place))}]": 1.0}


def _scores(env: Any, side: str, left: list[str]) -> dict[str, int]:
    """How many words of the side are nearest to each clue, or the harm where another word is."""
    own = [_place(word) for word in left if env.board[word] == side]
    others = [(_place(w), _HARM[env.board[w]]) for w in left if env.board[w] != side]
    scores = {}
    for clue in clues(env):
        at = _place(clue)
        distance, harm = min((abs(place - at), harm) for place, harm in others)
        meant = min(sum(abs(place - at) < distance for place in own), NUMBERS[-1])
        scores[f"[{clue} {meant or 1}]"] = meant or -harm
    return scores


@lru_cache(maxsize=1 << 14)
def _place(word: str) -> float:
    """Return the position of a word in the alphabet: a number whose digits are its letters."""
    return sum((ord(letter) - ord("a") + 1) / 27**digit for digit, letter in enumerate(word))
