"""Perfect Nim by the nim-sum (Bouton 1901, Annals of Mathematics 3); the last object wins."""

from functools import reduce
from operator import xor
from random import Random
from typing import Any

from unstable.games.info import Compact, Expert, GameInfo, Question, SmallTree, always


def moves(env: Any) -> dict[str, float]:
    """Return the takes that leave a nim-sum of 0, or all takes if all lose, equally likely.

    The nim-sum is the exclusive or of the piles' sizes.
    """
    piles = env.state.game_state["piles"]
    nim_sum = reduce(xor, piles)
    best = [
        f"[{pile} {size - (size ^ nim_sum)}]"
        for pile, size in enumerate(piles)
        if size ^ nim_sum < size
    ] or legal_moves(env)
    return dict.fromkeys(best, 1 / len(best))


def action_values(env: Any) -> dict[str, float]:
    """Return 1 for takes that leave a nim-sum of 0, and -1 for others."""
    winning = moves(env) if reduce(xor, env.state.game_state["piles"]) else {}
    return {move: 1.0 if move in winning else -1.0 for move in legal_moves(env)}


def reason(env: Any, action: str) -> str:
    """Return a sentence on the nim-sum that a take leaves, and on the winner."""
    pile, take = map(int, action.strip("[]").split())
    left = list(env.state.game_state["piles"])
    left[pile] -= take
    if not any(left):
        return f"Taking {take} from pile {pile} takes the last of all and wins."
    nim_sum = reduce(xor, left)
    winner = "whoever moves next wins" if nim_sum else "whoever moves next loses"
    piles = " xor ".join(map(str, left))
    return (
        f"Taking {take} from pile {pile} leaves nim-sum {piles} = {nim_sum}, so that with perfect "
        f"play {winner}."
    )


def legal_moves(env: Any) -> list[str]:
    """Return the takes: any number of objects of one pile."""
    piles = enumerate(env.state.game_state["piles"])
    return [f"[{pile} {take}]" for pile, size in piles for take in range(1, size + 1)]


def position(env: Any) -> str:
    """Return the piles' sizes in order, such as 3 4 5."""
    return _sizes(env.state.game_state["piles"])


def what_is_left(rng: Random) -> tuple[str, list[str]]:
    """Draw piles and a take; the answer is the piles after it."""
    piles = [rng.randint(0, 5) for _ in range(3)]
    pile = rng.randrange(3)
    piles[pile] = max(1, piles[pile])
    take = rng.randint(1, piles[pile])
    left = [size - take * (index == pile) for index, size in enumerate(piles)]
    return f"{_sizes(piles)}:{pile} {take}", [_sizes(left)]


def _sizes(piles: list[int]) -> str:
    return " ".join(map(str, piles))


QUESTIONS = (
    Question("Nim, sizes of the piles and then a take: the sizes that it leaves.", what_is_left),
)
COMPACT = Compact(
    "Nim: whoever takes the last object of all wins. The numbers are the sizes of pile 0, pile 1 "
    "and so on. Answer with a pile's number and how many to take from it, such as 0 2, nothing "
    "else.",
    position,
)
INFO = GameInfo(
    env="NimEnv",
    name="Nim",
    legal_moves=legal_moves,
    board_shows_all=always,
    perfect_information=always,
    small_tree=SmallTree(is_open=True),
    expert=Expert(moves, reason),
    action_values=action_values,
    compact=COMPACT,
    questions=QUESTIONS,
)
