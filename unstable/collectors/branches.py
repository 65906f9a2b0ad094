"""Branching: one game, forked at a turn of the trained seat into a group of continuations.

They share history, env chance and opponents, so that what differs in their outcomes is owed to what
was sampled from the fork on. A fork replays the game's actions from its seed: no env is copied. The
first game only says where to fork; all that is compared was played after it.
"""

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from unstable.collectors.watch import task_name
from unstable.engines.base import EngineDiedError
from unstable.types import Answer, GameResult, GameSpec, Turn
from unstable.types.seeds import derive_seed

DECAY = 0.8
"""How much of a turn's estimated spread remains when a group forked there has ended."""
LEAST_SPREAD = 0.05
"""Where branches always ended alike they are tried now and then: the policy changes."""


class Forks:
    """Chooses the turn to fork at, among the `count` turns of a seat.

    uniform: any of them. uncertain: in proportion to how differently earlier groups ended, by the
    standard deviation of their outcomes in each (env, seat, number of the turn), at first 1.
    """

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._spreads: dict[tuple[str, int], dict[int, float]] = {}

    def choose(self, env: str, seat: int, count: int, chance: random.Random) -> int:
        """The number of the turn, from 0."""
        if self._rule == "uniform":
            return chance.randrange(count)
        spreads = self._spreads.get((env, seat), {})
        weights = [max(LEAST_SPREAD, spreads.get(turn, 1.0)) for turn in range(count)]
        return chance.choices(range(count), weights)[0]

    def learn(self, env: str, seat: int, turn: int, outcomes: Sequence[float]) -> None:
        """Take in how the branches of a fork ended for the seat."""
        spreads = self._spreads.setdefault((env, seat), {})
        spreads[turn] = DECAY * spreads.get(turn, 1.0) + (1 - DECAY) * statistics.pstdev(outcomes)

    def state(self) -> list[tuple[str, int, int, float]]:
        """Spreads: env, seat, turn, spread."""
        return [
            (*place, turn, spread)
            for place, spreads in self._spreads.items()
            for turn, spread in spreads.items()
        ]

    def restore(self, state: Iterable[tuple[str, int, int, float]]) -> None:
        """Continue from what `state` returned."""
        self._spreads = {}
        for env, seat, turn, spread in state:
            self._spreads.setdefault((env, seat), {})[turn] = spread


class PlayOne(Protocol):
    """Plays one game, from where the shared turns have led."""

    def __call__(
        self, spec: GameSpec, shared: Sequence[Turn] = (), first: Answer | None = None
    ) -> Coroutine[Any, Any, GameResult]:
        """`first`: the answer of its first own turn; None: the player is asked."""


Explore = Callable[[GameSpec, Turn], Awaitable[Sequence[Answer | None]]]
"""The first answers of the branches of a game that is forked at a turn."""


async def sampled_first(spec: GameSpec, turn: Turn) -> list[Answer | None]:
    """Each branch's own player answers."""
    return [None] * spec.branches


async def play_branches(
    spec: GameSpec,
    play: PlayOne,
    run_seed: int,
    forks: Forks,
    explore: Explore = sampled_first,
) -> GameResult:
    """Play `spec` and then its branches, from a turn of the trained seat on, all at once.

    `explore` says what the branches begin with. A game in which that seat had no turn has none.
    Raises what a branch raised, and `EngineDiedError` before anything else.
    """
    parent = await play(spec)
    (seat,) = [place for place, seat in enumerate(spec.seats) if seat.trained]
    turns = parent.seat_turns(seat)
    if not turns:
        return parent
    chance = random.Random(derive_seed(run_seed, "fork", spec.game_id))
    number = forks.choose(spec.env, seat, len(turns), chance)
    shared = parent.turns[: turns[number].index]
    first = await explore(spec, turns[number])
    specs = [
        replace(spec, game_id=spec.game_id + member, member=member, branches=0)
        for member in range(1, spec.branches + 1)
    ]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(play(branch, shared, answer), name=task_name(branch))
                for branch, answer in zip(specs, first, strict=True)
            ]
    except ExceptionGroup as raised:
        died = raised.subgroup(EngineDiedError)
        raise (died or raised).exceptions[0] from None
    parent.branches = [task.result() for task in tasks]
    forks.learn(spec.env, seat, number, [game.outcomes[seat] for game in parent.branches])
    return parent
