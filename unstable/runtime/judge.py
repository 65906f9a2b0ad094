"""A user's plain reward terms, asked in a process of their own: one that never ends is ended there.

An alarm ends what takes too long, and reaches a process's main thread alone, where an actor has no
code of its own. Where even that does not help, as in a library that never comes back to the
interpreter, the process is killed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from unstable.config import JudgeConfig, RewardConfig, RunConfig
from unstable.processes.worker import Beat, Worker
from unstable.records.folder import RunFolder
from unstable.rewards.terms import Rewards, Values
from unstable.types import GameResult

GRACE_S = 10.0
"""Beyond the time of a call, for the alarm to end it."""


def judging(config: RunConfig, folder: RunFolder) -> Rewards:
    """The config's terms, as one of a run's actors asks them."""
    terms, judges = config.buffer.rewards, config.judges
    return Rewards(
        terms,
        judges,
        among=config.actors.sharing,
        apart=terms_worker(terms, judges).ask,
        cache=folder.answers,
    )


def terms_worker(terms: Sequence[RewardConfig], judges: Mapping[str, JudgeConfig]) -> Worker:
    """Return a worker that replies to a game with `Rewards.plain_values`."""
    limit_s = max((each.judge_in(judges).timeout for each in terms), default=0.0) + GRACE_S
    make = partial(_values, list(terms), dict(judges))
    return Worker("the process of its reward terms", make, limit_s)


def _values(
    terms: Sequence[RewardConfig], judges: Mapping[str, JudgeConfig]
) -> Callable[[GameResult, Beat], Values]:
    return Rewards(terms, judges).plain_values
