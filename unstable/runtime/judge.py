"""Worker process for a user's plain reward terms, in which a call that hangs can be ended.

An alarm interrupts a call that takes too long, but only in a process's main thread, which runs no
code of an actor. If the alarm does not help, as in a library that never returns to the interpreter,
the process is killed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from unstable.config import JudgeConfig, RewardConfig, RunConfig
from unstable.processes.worker import Beat, Worker
from unstable.records.folder import RunFolder
from unstable.rewards.terms import Rewards, Values
from unstable.types import GameResult

GRACE_S = 10.0
"""Seconds beyond the timeout of a call that the alarm has to end it."""


def judging(config: RunConfig, folder: RunFolder) -> Rewards:
    """Return the config's reward terms for one of a run's actors."""
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
    return Worker("the process of reward terms", make, limit_s)


def _values(
    terms: Sequence[RewardConfig], judges: Mapping[str, JudgeConfig]
) -> Callable[[GameResult, Beat], Values]:
    return Rewards(terms, judges).plain_values
