"""Games judged by reward terms, and what these were asked."""

from collections.abc import AsyncGenerator, Sequence

from unstable.rewards.terms import Rewards
from unstable.types import GameFailure, GameResult


async def judged(rewards: Rewards, games: Sequence[GameResult]) -> dict[int, float | str]:
    """By game the reward of its first trajectory, or the error that it failed with."""

    async def played() -> AsyncGenerator[list[GameResult | GameFailure]]:
        yield list(games)

    found: dict[int, float | str] = {}
    async for together in rewards.judge(played()):
        for each in together:
            if isinstance(each, GameFailure):
                found[each.spec.game_id] = each.error
            else:
                found[each[0].spec.game_id] = each[1][0].reward
    await rewards.close()
    return found


def counts(rewards: Rewards, name: str = "http") -> dict[str, int]:
    """What a term was asked since the last call."""
    return rewards.take_asked().counts[name]
