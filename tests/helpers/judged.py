"""Games judged by reward terms, and the counts of calls to these terms."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from examples.service_judge import score
from unstable.config import JudgeConfig, RewardConfig
from unstable.rewards.terms import Rewards
from unstable.types import GameFailure, GameResult, Turn

Entry = RewardConfig | tuple[RewardConfig, JudgeConfig]
"""A term, with the judge that it names."""
SEATS, TURNS = "examples.service_judge:score", f"{__name__}:score_turns"
"""Functions that score whole games, and turns, by a service."""


async def score_turns(results: list[GameResult], turns: list[Turn], url: str) -> list[float | None]:
    return await score(results, turns, url)  # type: ignore[arg-type]  # handles both


def judged_by(kind: str, *, term: str = "judge", **fields: Any) -> tuple[RewardConfig, JudgeConfig]:
    """A term and its judge, by the fields of both."""
    own = {name: fields.pop(name) for name in ("name", "weight", "judged") if name in fields}
    return RewardConfig(term=term, **own), JudgeConfig(kind=kind, **fields)


def rewards_of(*entries: Entry) -> Rewards:
    """Terms and their judges as of a config."""
    pairs = [each if isinstance(each, tuple) else (each, None) for each in entries]
    judges = {term.term: judge for term, judge in pairs if judge is not None}
    return Rewards([term for term, _ in pairs], judges)


async def ended(*games: GameResult) -> AsyncGenerator[list[GameResult | GameFailure]]:
    """Yield games that end together."""
    yield [*games]


async def judged(rewards: Rewards, games: Sequence[GameResult]) -> dict[int, float | str]:
    """Return by game the reward of its first trajectory, or the error of the game."""
    found: dict[int, float | str] = {}
    async for together in rewards.judge(ended(*games)):
        for each in together:
            if isinstance(each, GameFailure):
                found[each.spec.game_id] = each.error
            else:
                found[each[0].spec.game_id] = each[1][0].reward
    await rewards.close()
    return found


def counts(rewards: Rewards, name: str = "judge") -> dict[str, int]:
    """Return and reset a term's counts of calls since the last call."""
    return rewards.take_asked().counts[name]
