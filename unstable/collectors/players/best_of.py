"""A local model that plays the best of several answers, by what a judge says of each."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from unstable.collectors.players.base import Player, Position
from unstable.config import GameConfig
from unstable.types import Answer, Observation
from unstable.types.seeds import derive_seed

JudgeAnswer = Callable[[GameConfig, Observation, Answer], Awaitable[float | None]]
"""What an answer to an observation of a game would be worth; None: nothing can be said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfPlayer:
    """Samples `answers` answers to each turn and plays the one that the judge values most.

    Equal answers are judged once. Of equal values, and where the judge has none, the one that was
    sampled first is played. The first sample has the seed that it would have alone. What the judge
    raises costs the game.
    """

    player: Player
    answers: int
    judge: JudgeAnswer

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """The best answer."""
        seeds = [seed, *(derive_seed(seed, "best of", index) for index in range(1, self.answers))]
        found = await asyncio.gather(*(self.player.act(observation, game, each) for each in seeds))
        distinct = {answer.text: answer for answer in reversed(found)}
        candidates = [answer for answer in found if distinct[answer.text] is answer]
        if len(candidates) == 1:
            return candidates[0]
        values = await asyncio.gather(
            *(self.judge(game.config, observation, answer) for answer in candidates)
        )
        worths = [-math.inf if value is None else value for value in values]
        return candidates[worths.index(max(worths))]
