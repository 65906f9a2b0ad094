"""A player that is given only so long for a turn: a bot or an endpoint that never answers."""

import asyncio
from dataclasses import dataclass

from unstable.collectors.players.base import Answer, Player
from unstable.games.game import Game
from unstable.types import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedPlayer:
    """Raises `TimeoutError` where the player has not answered by `games.turn_timeout`.

    What blocks the event loop cannot be ended so: `collectors/watch.py` looks after that.
    """

    player: Player
    name: str

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        """The player's answer, in time."""
        seconds = game.config.turn_timeout
        try:
            async with asyncio.timeout(seconds) as timer:
                return await self.player.act(observation, game, seed)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise TimeoutError(
                f"{self.name} has not answered in games.turn_timeout = {seconds:g} s"
            ) from error
