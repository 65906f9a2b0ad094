"""Dealers: keep each actor busy by dealing groups of games as the gate lets them begin."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from unstable.loop.context import Context
from unstable.types import GameFailure, PlayedGame


class Dealer:
    """A dealer for one actor: deals groups to it and takes in the games that end there."""

    def __init__(self, context: Context, actor: int, groups: int) -> None:
        """Initialize a dealer with at most `groups` groups in flight at the actor."""
        self._context, self._actor = context, actor
        self._places = asyncio.Semaphore(groups)
        self._groups: dict[int, list[int]] = {}  # by first game: [games in flight, samples]

    async def keep_dealing(self) -> None:
        """Deal one group after another, each as soon as there is a place and room for it."""
        context = self._context
        while True:
            await self._places.acquire()
            await context.actors[self._actor].present()
            await context.gate.enter(context.versions.trained)
            specs = context.schedule.draw(
                self._actor, context.current, context.past, context.probabilities
            )
            context.in_flight |= {spec.game_id: spec for spec in specs}
            self._groups[specs[0].game_id - specs[0].member] = [len(specs), 0]
            context.actors[self._actor].deal(specs)

    async def keep_taking(self) -> None:
        """Count games as they end, in one step with recording them."""
        context = self._context
        async with aclosing(context.actors[self._actor].play_on()) as lists:
            async for ended in lists:
                context.admit(context.take(ended, self._actor))
                self._end(ended.games)
                await context.look_at(self._actor)

    def _end(self, games: Sequence[PlayedGame | GameFailure]) -> None:
        """Release the places of groups that have ended."""
        brought = []
        for game in games:
            first = game.spec.game_id - game.spec.member
            group = self._groups[first]
            group[0] -= 1
            group[1] += game.num_samples if isinstance(game, PlayedGame) else 0
            if not group[0]:
                del self._groups[first]
                brought.append(group[1])
                self._places.release()
        self._context.gate.leave(self._context.versions.trained, *brought)
