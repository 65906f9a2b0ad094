"""Curriculum: probabilities of the envs in a run with several, by weights or by learning signal.

A rule is a function that gives each env a weight, from the training rewards of the env; custom
rules have the same form. It is evaluated when a version is announced, and its probabilities hold
until the next announcement: this module draws nothing.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pydantic import BaseModel, NonNegativeFloat

from unstable.config import RunConfig
from unstable.league.matchmaking import read_rule, rule_weights
from unstable.types import PlayedGame
from unstable.types.metrics import metric_name

SLOW = 1 / 4
"""Exponent of the decay for the slower of two running means, whose memory is four times as long."""

Weights = Sequence[float]


class EnvStats(NamedTuple):
    """Statistics of an env: EnvStats("Nim-v0", 1.0, trajectories=812.0, spread=0.9, progress=0.1)

    All are computed from the policy's training rewards for each seat, and averaged over seats.
    `spread` is the standard deviation; `progress` is the distance between the running mean and one
    whose memory is four times as long. An env without games has the largest values of the others.
    """

    env: str
    weight: float  # from the config
    trajectories: float  # decayed count
    spread: float
    progress: float


Rule = Callable[[Sequence[EnvStats]], Weights]
"""Function of the envs, in config order, that returns their weights."""


def weight(envs: Sequence[EnvStats]) -> Weights:
    """Return the config's weights unchanged."""
    return [each.weight for each in envs]


def spread(envs: Sequence[EnvStats]) -> Weights:
    """Return weights times spread, since an env where all games end alike has no gradient."""
    return [each.weight * each.spread for each in envs]


def progress(envs: Sequence[EnvStats]) -> Weights:
    """Return weights times progress, upwards or downwards.

    Learning progress as in Matiisen et al. (2017, arXiv 1707.00183), from two running means as in
    Kanitscheider et al. (2021, arXiv 2106.14876).
    """
    return [each.weight * each.progress for each in envs]


BUILT_IN: dict[str, Rule] = {"weight": weight, "spread": spread, "progress": progress}
TRIAL = [EnvStats(f"env-{at}", 1.0, 100.0, 0.5 + at / 10, 0.1 + at / 10) for at in range(3)]
"""Envs with which a rule is tried before a run."""


class Sums(BaseModel):
    """Decayed sums over a seat's rewards: their count, total and total of squares."""

    count: NonNegativeFloat = 0.0
    total: float = 0.0
    squares: NonNegativeFloat = 0.0

    def add(self, reward: float) -> None:
        """Add a reward."""
        self.count += 1
        self.total += reward
        self.squares += reward * reward

    def fade(self, share: float) -> None:
        """Multiply all sums by `share`."""
        self.count, self.total = self.count * share, self.total * share
        self.squares *= share

    @property
    def mean(self) -> float:
        """Mean of the rewards."""
        return self.total / self.count

    @property
    def deviation(self) -> float:
        """Standard deviation of the rewards."""
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2))


class SeatRewards(BaseModel):
    """Rewards of a seat, with a short and a long memory."""

    fast: Sums = Sums()
    slow: Sums = Sums()


class CurriculumState(BaseModel):
    """State of the curriculum for a resume: rewards by env and seat."""

    seats: dict[str, dict[int, SeatRewards]]


class Curriculum:
    """Rule of a run that weights its envs, and the training rewards that the rule uses.

    Raises `ConfigError` if the rule cannot be loaded or called, or returns invalid weights.
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
        """True if the config's weights alone decide: the rule is `weight`, or there is one env."""
        return self._config.rule == "weight" or len(self._weights) == 1

    def count(self, games: Sequence[PlayedGame]) -> None:
        """Add the rewards of training games; does nothing if `follows_weights`."""
        if self.follows_weights:
            return
        for game in games:
            seats = self._seats[game.spec.env]
            for trajectory in game.trajectories:
                seat = seats.setdefault(trajectory.seat, SeatRewards())
                seat.fast.add(trajectory.reward)
                seat.slow.add(trajectory.reward)

    def fade(self) -> None:
        """Decay the rewards counted so far, once for each new version."""
        for seats in self._seats.values():
            for seat in seats.values():
                seat.fast.fade(self._config.decay)
                seat.slow.fade(self._config.decay**SLOW)

    def stats(self) -> list[EnvStats]:
        """Return the statistics of the envs in config order; [] if `follows_weights`."""
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
        """Return the probability of each env in config order; [] if `follows_weights`."""
        if not (envs := self.stats()):
            return []
        plain = _shares([each.weight for each in envs])
        asked = self._asked(envs)
        share = self._config.share if any(asked) else 0.0
        ruled = _shares(asked) if share else plain
        return [(1 - share) * a + share * b for a, b in zip(plain, ruled, strict=True)]

    def metrics(self, probabilities: Sequence[float]) -> dict[str, float | None]:
        """Return metrics `curriculum/*` of each env; {} if `follows_weights`."""
        found: dict[str, float | None] = {}
        for each, probability in zip(self.stats(), probabilities, strict=True):
            found[metric_name("curriculum/probability", each.env)] = probability
            found[metric_name("curriculum/spread", each.env)] = each.spread
            found[metric_name("curriculum/progress", each.env)] = each.progress
        return found

    def state(self) -> CurriculumState:
        """Return the state that `restore` takes."""
        return CurriculumState.model_construct(seats=self._seats)

    def restore(self, state: CurriculumState) -> None:
        """Continue from what `state` returned."""
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
        """Return the rule's weights, which may all be 0; raises `ConfigError` for invalid ones."""
        weights = rule_weights(self._place, partial(self._rule, envs), len(envs), "envs")
        return [float(each) for each in weights]


def _shares(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [each / total for each in weights]
