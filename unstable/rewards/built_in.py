"""Reward terms that need nobody else: functions of a game and of a turn, or of a seat."""

from collections.abc import Callable
from typing import Any

from unstable.config import Part
from unstable.types import GameResult, Turn


def outcome(result: GameResult, seat: int) -> float:
    """The seat's outcome of the game."""
    return result.outcomes[seat]


def action_format(result: GameResult, turn: Turn) -> float:
    """1 if the parser found an action in the answer, else 0."""
    return float(turn.answer.formatted)


def invalid_move(result: GameResult, turn: Turn) -> float:
    """1 if the env refused the action, else 0; give it a negative weight."""
    return float(turn.invalid)


def length(result: GameResult, turn: Turn, of: Part = "answer", free: int = 0) -> float:
    """Number of sampled tokens beyond `free`; give it a small negative weight."""
    return float(max(0, _tokens(turn, of) - free))


def overlong(result: GameResult, turn: Turn, most: int, buffer: int, of: Part = "answer") -> float:
    """0 up to `most - buffer` sampled tokens, from there down to -1 at `most`, in a line.

    The soft overlong punishment of DAPO (Yu et al., 2025, arXiv:2503.14476, equation 13).
    """
    return -min(1.0, max(0, _tokens(turn, of) - (most - buffer)) / buffer)


def _tokens(turn: Turn, of: Part) -> int:
    """Number of sampled tokens of the answer, of its thought or of the rest; 0 of a program's."""
    sampled = turn.answer.sampled
    if sampled is None:
        return 0
    if of == "thought":
        return sampled.thought
    return sampled.num_scored - (sampled.thought if of == "action" else 0)


def expert(result: GameResult, turn: Turn) -> float | None:
    """How likely the game's expert makes the move that was made; 0 where that was none.

    It is on the turn where `sampling.moves` is expert. None where no local model answered.
    """
    sampled = turn.answer.sampled
    if sampled is None:
        return None
    move = sampled.move
    return 0.0 if move is None else sampled.moves[move].expert


BUILT_IN: dict[str, Callable[..., Any]] = {
    "outcome": outcome,
    "format": action_format,
    "invalid_move": invalid_move,
    "length": length,
    "overlong": overlong,
    "expert": expert,
}
