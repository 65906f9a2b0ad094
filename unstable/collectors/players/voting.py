"""A local model that answers a turn several times; what it says most often is played.

For evaluation alone, as what is played so is not what the model's distribution is.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace

from unstable.collectors.players.base import Player
from unstable.games.game import Game
from unstable.types import Answer, Observation
from unstable.types.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingPlayer:
    """Majority vote over `votes` samples (Wang et al., 2023, arXiv:2203.11171).

    Each sample whose parser found an action has one vote. The answer is the first sample with the
    action named most often, of several the one that was named first; without any vote, the first
    sample. The first has the seed that it would have alone.
    """

    player: Player
    votes: int

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        """The answer that won, with the number of its votes."""
        seeds = [seed, *(derive_seed(seed, "vote", index) for index in range(1, self.votes))]
        answers = await asyncio.gather(
            *(self.player.act(observation, game, each) for each in seeds)
        )
        counts = Counter(answer.action for answer in answers if answer.formatted)
        if not counts:
            return replace(answers[0], votes=0)
        ((action, votes),) = counts.most_common(1)  # of equals the first counted
        winner = next(answer for answer in answers if answer.formatted and answer.action == action)
        return replace(winner, votes=votes)
