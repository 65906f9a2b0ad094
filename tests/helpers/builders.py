"""Builders of values for tests, such as a finished game."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from unstable.engines.base import SamplingRequest
from unstable.loop.ended import Ended
from unstable.types import (
    Answer,
    Completion,
    GameResult,
    GameSpec,
    PackedTrajectory,
    PlayedGame,
    PlayerId,
    Purpose,
    SampledTokens,
    SeatSpec,
    Trajectory,
    Turn,
)


def asking(prompt_ids: Sequence[int], **changes: Any) -> SamplingRequest:
    """A request of the base model, for up to 6 tokens."""
    given: dict[str, Any] = {"adapter": None, "temperature": 1.0, "max_tokens": 6, "seed": 0}
    return SamplingRequest(prompt_ids=prompt_ids, **given | changes)


def spec(
    players: Sequence[str] = ("main@0", "random"),
    *,
    game_id: int = 0,
    env: str = "TicTacToe-v0",
    purpose: Purpose = "train",
    trained: Sequence[int] | None = None,
    group_size: int = 1,
    group_ids: Sequence[int] | None = None,
) -> GameSpec:
    """A game's spec; by default the seats of the newest policy are trained, a group each."""
    versions = [PlayerId.parse(player).version for player in players]
    newest = max((version for version in versions if version is not None), default=None)
    if trained is None:
        trained = [i for i, v in enumerate(versions) if v is not None and v == newest]
    if purpose == "eval":
        trained = []
    ids = group_ids or [100 * game_id + seat for seat in range(len(players))]
    seats = tuple(
        SeatSpec(
            player=PlayerId.parse(player),
            temperature=1.0,
            group_id=ids[seat] if seat in trained else None,
            group_size=group_size,
        )
        for seat, player in enumerate(players)
    )
    return GameSpec(game_id=game_id, purpose=purpose, env=env, seed=game_id, seats=seats)


def sampled(version: int | None = 0, **changes: Any) -> SampledTokens:
    """Two tokens after a prompt of three; `changes` are of them or of their completion."""
    tokens = {"prompt_ids": [1, 2, 3], "temperature": 1.0, "version": version, "prompt_cut": 0}
    own = {name: changes.pop(name) for name in [*tokens] if name in changes}
    return SampledTokens(segments=(completion(**changes),), **(tokens | own))  # type: ignore[arg-type]


def completion(**changes: Any) -> Completion:
    """Two tokens of an adapter."""
    values: dict[str, Any] = {"token_ids": [7, 8], "logprobs": [-0.5, -0.25]}
    return Completion(**(values | {"finish_reason": "stop", "adapter": "main@0"} | changes))


def turn(
    seat: int, index: int, player: str, invalid: bool = False, seconds: float = 0.1, **changes: Any
) -> Turn:
    """A legal turn, `changes` are its answer's; a model's if the player is a version."""
    who = PlayerId.parse(player)
    values: dict[str, Any] = {
        "player": who,
        "observation": "the board",
        "sampled": None if who.version is None else sampled(who.version),
        "text": "[4]",
        "action": "[4]",
    }
    answer = Answer(**(values | changes))
    return Turn(seat=seat, index=index, answer=answer, invalid=invalid, seconds=seconds)


def answering(turn: Turn, **changes: Any) -> Turn:
    """Return a copy of the turn with changes to its answer."""
    return replace(turn, answer=replace(turn.answer, **changes))


def game(
    players: Sequence[str] = ("main@0", "random"),
    outcomes: Sequence[float] = (1.0, -1.0),
    *,
    turns: int = 4,
    forfeit: int | None = None,
    **spec_changes: object,
) -> GameResult:
    """A finished game in which the seats took `turns` turns one after the other."""
    played = [turn(i % len(players), i, players[i % len(players)]) for i in range(turns)]
    if forfeit is not None:
        last = [t for t in played if t.seat == forfeit][-1]
        last.invalid = True
    return GameResult(
        spec=spec(players, **spec_changes),  # type: ignore[arg-type]
        turns=played,
        payoffs=list(outcomes),
        outcomes=list(outcomes),
        forfeit=forfeit,
        truncated=False,
        reason="over",
        seconds=1.0,
    )


def brief(result: GameResult) -> PlayedGame:
    """Return the game as the loop receives it."""
    (finished,) = Ended.of([(result, [])]).finished
    return finished


def packed(trajectories: Sequence[Trajectory]) -> list[PackedTrajectory]:
    """Pack trajectories into the form that the loop holds."""
    return list(map(PackedTrajectory.of, trajectories))
