"""Rule bot for Codenames, which compares words by spelling and not by meaning."""

from functools import lru_cache
from typing import Any

from unstable.contrib.rules.textarena import best
from unstable.games.catalog.codenames import NUMBERS, SPYMASTERS, clues, left_words
from unstable.games.info import Events, Probabilities

_HARM = {"N": 1, "R": 2, "B": 2, "A": 3}  # harm of guessing a word, by its owner


def moves(env: Any, events: Events) -> Probabilities:
    """Return the rule bot's moves: a clue means the words nearest to it in alphabetical order.

    The operative guesses these words; the spymaster's clue covers as many words as possible.
    """
    state, seat, left = env.state.game_state, env.state.current_player_id, left_words(env)
    if seat in SPYMASTERS:
        return best(_scores(env, "RB"[seat // 2], left))
    if state["remaining_guesses"] == 1:  # the rules allow one guess more than the clue's number
        return {"[pass]": 1.0}
    place = _place(state["last_clue"])
    return {f"[{min(left, key=lambda word: abs(_place(word) - place))}]": 1.0}


def _scores(env: Any, side: str, left: list[str]) -> dict[str, int]:
    """Score clues: how many of the side's words are nearest, or minus the nearest word's harm."""
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
