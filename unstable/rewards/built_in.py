"""Built-in reward terms: functions of a game and of a turn or a seat, without external services."""

from collections.abc import Callable
from typing import Any

from unstable.config import Part
from unstable.types import GameResult, Turn


def outcome(result: GameResult, seat: int) -> float:
    """Return the seat's outcome of the game."""
    return result.outcomes[seat]


def action_format(result: GameResult, turn: Turn) -> float:
    """Return 1 if the parser found an action in the answer, else 0."""
    return float(turn.answer.formatted)


def invalid_move(result: GameResult, turn: Turn) -> float:
    """Return 1 if the env refused the action, else 0; use a negative weight."""
    return float(turn.invalid)


def length(result: GameResult, turn: Turn, of: Part = "answer", free: int = 0) -> float:
    """Return the number of sampled tokens beyond `free`; use a small negative weight."""
    return float(max(0, _tokens(turn, of) - free))


def overlong(result: GameResult, turn: Turn, most: int, buffer: int, of: Part = "answer") -> float:
    """Return 0 up to `most - buffer` sampled tokens, decreasing linearly to -1 at `most`.

    The soft overlong punishment of DAPO (Yu et al., 2025, arXiv:2503.14476, equation 13).
    """
    return -min(1.0, max(0, _tokens(turn, of) - (most - buffer)) / buffer)


def _tokens(turn: Turn, of: Part) -> int:
    """Return the number of sampled tokens of a part of the answer; 0 without a local model."""
    sampled = turn.answer.sampled
    if sampled is None:
        return 0
    if of == "thought":
        return sampled.thought
    return sampled.num_scored - (sampled.thought if of == "action" else 0)


def expert(result: GameResult, turn: Turn) -> float | None:
    """Return the expert's probability of the turn's move; 0 for an answer without a legal move.

    The turn has it if `sampling.moves` is expert. None if no local model answered.
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
