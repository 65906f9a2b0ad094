"""A local model that samples several answers and plays the majority's or a judge's choice."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from unstable.collectors.players.base import Player, Position
from unstable.config import GameConfig
from unstable.types import Answer, Observation
from unstable.types.seeds import derive_seed

JudgeAnswer = Callable[[GameConfig, Observation, Answer], Awaitable[float | None]]
"""A function (game, observation, answer) -> value of the answer; None: no judgment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfPlayer:
    """A player that samples `answers` answers per turn and plays the one with the highest value.

    The judge values equal answers once. The earliest sample wins among equal values, and if the
    judge returns none. The first sample has the seed that it would have alone. An exception of the
    judge fails the game.
    """

    player: Player
    answers: int
    judge: JudgeAnswer

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        seeds = _seeds(seed, "best of", self.answers)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingPlayer:
    """Majority vote over `votes` samples (Wang et al., 2023, arXiv:2203.11171), for evaluation.

    Each sample with a parsed action has one vote. The answer is the first sample with the most
    frequent action, the one named first among equals; without any vote, the first sample. The first
    sample has the seed that it would have alone.
    """

    player: Player
    votes: int

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Return the winning answer, with the number of its votes."""
        seeds = _seeds(seed, "vote", self.votes)
        found = await asyncio.gather(*(self.player.act(observation, game, each) for each in seeds))
        counts = Counter(answer.action for answer in found if answer.formatted)
        if not counts:
            return replace(found[0], votes=0)
        ((action, votes),) = counts.most_common(1)  # the first among ties
        winner = next(answer for answer in found if answer.formatted and answer.action == action)
        return replace(winner, votes=votes)


def _seeds(seed: int, what: str, count: int) -> list[int]:
    """Return the seed itself, and others derived from it."""
    return [seed, *(derive_seed(seed, what, index) for index in range(1, count))]
