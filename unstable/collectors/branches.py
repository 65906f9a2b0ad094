"""Branching: a game is forked at a turn of the trained seat into a group of continuations.

Branches share history, env randomness and opponents, so differences of their outcomes come from
actions after the fork. A fork replays the game's actions from its seed, without copying an env. The
first game only leads to the fork; all compared turns come after it.

The number of the turn is drawn before the first game. A draw among that game's turns would depend
on events after the fork: deals that lead to long games would be forked less often at each turn,
which would bias the distribution of hidden information.
"""

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from unstable.collectors.watch import task_name
from unstable.engines.base import EngineDiedError
from unstable.types import Answer, GameResult, GameSpec, Turn
from unstable.types.seeds import derive_seed

DECAY = 0.8
"""Weight of a turn's old spread in the estimate after a new group forked there."""
MEMORY = 0.95
"""Weight of the old share of games that reach a turn in the estimate after a new game."""
UNKNOWN = {turn: 0.5**turn for turn in range(6)}
"""The share of games that reach each turn, before any has been played."""
LEAST_SPREAD = 0.05
"""Least weight, so that turns whose branches ended alike are still tried: the policy changes."""


class Forks:
    """Sampler of a seat's turn to fork at, before the game is played.

    The probability of a turn is proportional to the share of earlier games that reached it. The
    rule "uncertain" multiplies it by the spread of the turn's groups: the standard deviation of
    outcomes in each (env, seat, number of the turn), initially 1.
    """

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._reached: dict[tuple[str, int], dict[int, float]] = {}
        self._spreads: dict[tuple[str, int], dict[int, float]] = {}

    def choose(self, env: str, seat: int, chance: random.Random) -> int:
        """Return the number of the turn, from 0."""
        reached = self._reached.get((env, seat), UNKNOWN)
        spreads = self._spreads.get((env, seat), {}) if self._rule == "uncertain" else {}
        weights = [
            share * max(LEAST_SPREAD, spreads.get(turn, 1.0)) for turn, share in reached.items()
        ]
        return chance.choices([*reached], weights)[0]

    def count(self, env: str, seat: int, turns: int) -> None:
        """Record the number of a seat's turns in a game."""
        reached = self._reached.setdefault((env, seat), dict(UNKNOWN))
        for turn in range(max(turns, len(reached))):
            share = reached.get(turn, 0.0)
            reached[turn] = share + (1 - MEMORY) * ((turn < turns) - share)

    def learn(self, env: str, seat: int, turn: int, outcomes: Sequence[float]) -> None:
        """Record the seat's outcomes in the branches of a fork."""
        spreads = self._spreads.setdefault((env, seat), {})
        spreads[turn] = DECAY * spreads.get(turn, 1.0) + (1 - DECAY) * statistics.pstdev(outcomes)

    def state(self) -> list[tuple[str, int, int, float, float]]:
        """Return rows of env, seat, turn, share of games that reached it, and spread."""
        return [
            (*place, turn, share, self._spreads.get(place, {}).get(turn, 1.0))
            for place, reached in self._reached.items()
            for turn, share in reached.items()
        ]

    def restore(self, state: Iterable[tuple[str, int, int, float, float]]) -> None:
        """Restore a value that `state` returned."""
        self._reached, self._spreads = {}, {}
        for env, seat, turn, share, spread in state:
            self._reached.setdefault((env, seat), {})[turn] = share
            self._spreads.setdefault((env, seat), {})[turn] = spread


PlayOne = Callable[..., Coroutine[Any, Any, GameResult]]
"""A function (spec, shared=(), first=None) -> game after shared turns and a given first answer."""
Explore = Callable[[GameSpec, Turn], Awaitable[Sequence[Answer | None]]]
"""A function (spec, turn) -> first answers of the branches of a game that is forked at a turn."""


async def sampled_first(spec: GameSpec, turn: Turn) -> list[Answer | None]:
    """Return None for each branch: its own player answers."""
    return [None] * spec.branches


async def play_branches(
    spec: GameSpec, play: PlayOne, run_seed: int, forks: Forks, explore: Explore = sampled_first
) -> GameResult:
    """Play `spec`, then its branches concurrently, from a turn of the trained seat on.

    `explore` returns the branches' first answers. A game that ends before the chosen turn has no
    branches. Raises a branch's exception, and `EngineDiedError` in preference to others.
    """
    (seat,) = [place for place, seat in enumerate(spec.seats) if seat.trained]
    chance = random.Random(derive_seed(run_seed, "fork", spec.game_id))
    number = forks.choose(spec.env, seat, chance)
    parent = await play(spec)
    turns = parent.seat_turns(seat)
    forks.count(spec.env, seat, len(turns))
    if number >= len(turns):
        return parent
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
