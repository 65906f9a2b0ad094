"""Which env is drawn where there are several: by weights alone, or also by what each teaches now.

A rule is a function of the envs as their training rewards show them that gives each a weight; a
user's own has the same form. It is asked when a version is announced, and its probabilities hold
until the next one is: nothing here draws anything.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pydantic import BaseModel, NonNegativeFloat

from unstable.config import RunConfig
from unstable.league.matchmaking import read_rule, rule_weights
from unstable.types import PlayedGame

SLOW = 1 / 4
"""The power of the decay that the slower of two running means has: its memory is so much longer."""

Weights = Sequence[float]


class EnvStats(NamedTuple):
    """An env as rules see it: EnvStats("Nim-v0", 1.0, trajectories=812.0, spread=0.9, progress=0.1)

    All is of the policy's training rewards, seat by seat, the mean over seats. `spread` is their
    standard deviation, `progress` how far their mean has moved: the distance of a running mean from
    one whose memory is four times as long. Of an env without games they are the largest of others.
    """

    env: str
    weight: float  # by the config
    trajectories: float  # that still count
    spread: float
    progress: float


Rule = Callable[[Sequence[EnvStats]], Weights]
"""The weight of each env, in the config's order."""


def weight(envs: Sequence[EnvStats]) -> Weights:
    """The config's weights alone."""
    return [each.weight for each in envs]


def spread(envs: Sequence[EnvStats]) -> Weights:
    """Weights times spread: where all games end alike there is no gradient."""
    return [each.weight * each.spread for each in envs]


def progress(envs: Sequence[EnvStats]) -> Weights:
    """Weights times progress, upwards or downwards.

    Learning progress as Matiisen et al. (2017, arXiv 1707.00183) have it, by two running means as
    Kanitscheider et al. (2021, arXiv 2106.14876).
    """
    return [each.weight * each.progress for each in envs]


BUILT_IN: dict[str, Rule] = {"weight": weight, "spread": spread, "progress": progress}
TRIAL = [EnvStats(f"env-{at}", 1.0, 100.0, 0.5 + at / 10, 0.1 + at / 10) for at in range(3)]
"""What a rule is tried with before a run."""


class Sums(BaseModel):
    """Rewards of a seat, faded: how many, their sum, and their squares' sum."""

    count: NonNegativeFloat = 0.0
    total: float = 0.0
    squares: NonNegativeFloat = 0.0

    def add(self, reward: float) -> None:
        """Count one."""
        self.count += 1
        self.total += reward
        self.squares += reward * reward

    def fade(self, share: float) -> None:
        """Have all so far count so much."""
        self.count, self.total = self.count * share, self.total * share
        self.squares *= share

    @property
    def mean(self) -> float:
        """The mean of the rewards."""
        return self.total / self.count

    @property
    def deviation(self) -> float:
        """Their standard deviation."""
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2))


class SeatRewards(BaseModel):
    """A seat's rewards, with a short and with a long memory."""

    fast: Sums = Sums()
    slow: Sums = Sums()


class CurriculumState(BaseModel):
    """What a resume needs: by env its seats."""

    seats: dict[str, dict[int, SeatRewards]]


class Curriculum:
    """The rule of a run, and the rewards that it goes by.

    Raises `ConfigError` for a rule that is none, or cannot be asked.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config.curriculum
        self._weights = {game.key: game.weight for game in config.games}
        self._seats: dict[str, dict[int, SeatRewards]] = {env: {} for env in self._weights}
        self._place, self._rule = read_rule(
            BUILT_IN, self._config.rule, self._config.args, "curriculum.rule", "envs", TRIAL
        )
        self._asked(TRIAL)

    @property
    def follows_weights(self) -> bool:
        """Whether the config's weights decide alone."""
        return self._config.rule == "weight" or len(self._weights) == 1

    def count(self, games: Sequence[PlayedGame]) -> None:
        """Take in the rewards of training games."""
        if self.follows_weights:
            return
        for game in games:
            seats = self._seats[game.spec.env]
            for trajectory in game.trajectories:
                seat = seats.setdefault(trajectory.seat, SeatRewards())
                seat.fast.add(trajectory.reward)
                seat.slow.add(trajectory.reward)

    def fade(self) -> None:
        """Have what was counted until now count less: a version has come."""
        for seats in self._seats.values():
            for seat in seats.values():
                seat.fast.fade(self._config.decay)
                seat.slow.fade(self._config.decay**SLOW)

    def stats(self) -> list[EnvStats]:
        """The envs, in the config's order; empty where weights decide alone."""
        if self.follows_weights:
            return []
        found = {env: self._of(env) for env in self._weights}
        known = [each for each in found.values() if each.trajectories]
        spread = max((each.spread for each in known), default=1.0)
        progress = max((each.progress for each in known), default=1.0)
        return [
            each if each.trajectories else each._replace(spread=spread, progress=progress)
            for each in found.values()
        ]

    def probabilities(self) -> list[float]:
        """How likely each env is drawn, in the config's order; empty where weights decide alone."""
        if not (envs := self.stats()):
            return []
        plain = _shares([each.weight for each in envs])
        asked = self._asked(envs)
        share = self._config.share if any(asked) else 0.0
        ruled = _shares(asked) if share else plain
        return [(1 - share) * a + share * b for a, b in zip(plain, ruled, strict=True)]

    def metrics(self, probabilities: Sequence[float]) -> dict[str, float | None]:
        """What is known of each env, and how likely it is drawn; empty where weights decide."""
        found: dict[str, float | None] = {}
        for each, probability in zip(self.stats(), probabilities, strict=True):
            found[f"curriculum/probability/{each.env}"] = probability
            found[f"curriculum/spread/{each.env}"] = each.spread
            found[f"curriculum/progress/{each.env}"] = each.progress
        return found

    def state(self) -> CurriculumState:
        """All that a resume needs."""
        return CurriculumState.model_construct(seats=self._seats)

    def restore(self, state: CurriculumState) -> None:
        """Go on from what `state` gave."""
        self._seats = {env: state.seats.get(env, {}) for env in self._weights}

    def _of(self, env: str) -> EnvStats:
        seats = [each for each in self._seats[env].values() if each.fast.count]
        count = len(seats) or 1
        return EnvStats(
            env,
            self._weights[env],
            trajectories=sum(each.fast.count for each in seats),
            spread=sum(each.fast.deviation for each in seats) / count,
            progress=sum(abs(each.fast.mean - each.slow.mean) for each in seats) / count,
        )

    def _asked(self, envs: Sequence[EnvStats]) -> list[float]:
        """The rule's weights; raises `ConfigError` where they are none. All may be 0."""
        weights = rule_weights(self._place, partial(self._rule, envs), len(envs), "envs")
        return [float(each) for each in weights]


def _shares(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [each / total for each in weights]
