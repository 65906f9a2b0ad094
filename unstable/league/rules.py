"""Rules of the collapse guard: pure functions of a metric's history.

A rule takes three updates together, so that a single one is never an alarm. Levels are relative to
the run's own first, least or greatest level, so that a threshold does not depend on model or game.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import ge, le
from statistics import median
from typing import NamedTuple

from unstable.config import Rule
from unstable.types.intervals import wilson_interval
from unstable.types.metrics import VersusKey

THRESHOLDS: dict[Rule, float] = {
    "entropy": 0.1,
    "entropy_fall": 0.5,
    "information": 0.5,
    "kl_sampling": 0.1,  # nats per turn
    "kl_reference": 3.0,  # nats per turn
    "length": 1.5,
    "truncation": 0.05,
    "forfeits": 0.1,
    "draws": 0.3,
    "tied": 0.95,
    "score": 3.0,  # standard errors
}
"""Default threshold of each rule; docs/guard.md explains them."""
EVALUATIONS = 3
"""Number of consecutive evaluations whose mean is a score."""
START = 5
"""Updates of a reference level: the first ones, or consecutive ones of least or greatest mean."""
RECENT = 3
"""Number of newest updates that a rule inspects."""
REACH = 10
"""Number of updates within which a fall is sudden."""
NOISE = 5.0
"""Standard deviations of an update's share that a rise must exceed, beyond its threshold."""
INFORMED = 0.02
"""Least level of information in nats that can be lost."""
SHORT = 8
"""Most tokens of an answer that count in the KL of a turn."""

Row = Mapping[str, float | None]


class FigurePoint(NamedTuple):
    """Figure of one update, and the number of observations in its mean."""

    version: int
    value: float
    size: float = 1.0


class RuleFinding(NamedTuple):
    """Broken rule: its figure, the threshold, and the version since which it is broken."""

    figure: float
    threshold: float
    since: int


@dataclass(slots=True)
class MetricHistory:
    """History of a metric over the updates, as far back as rules look."""

    start: list[FigurePoint] = field(default_factory=list)  # the first START
    recent: list[FigurePoint] = field(default_factory=list)  # the newest ones
    least: FigurePoint | None = None  # least mean of START consecutive updates
    most: FigurePoint | None = None  # greatest such mean

    def add(self, point: FigurePoint) -> None:
        """Add the next update's figure."""
        self.recent = [*self.recent, point][-REACH - RECENT :]
        if len(self.start) < START:
            self.start.append(point)
        if len(self.recent) >= START:
            mean = pooled(self.recent[-START:])
            if self.least is None or mean.value < self.least.value:
                self.least = mean
            if self.most is None or mean.value > self.most.value:
                self.most = mean

    @property
    def last(self) -> list[FigurePoint]:
        """Figures of the newest RECENT updates."""
        return self.recent[-RECENT:]

    def finding(
        self, figure: float, threshold: float, within: Callable[[float, float], bool]
    ) -> RuleFinding | None:
        """Return a finding on `figure`; None if it is within the threshold."""
        if within(figure, threshold):
            return None
        version = self.recent[-1].version
        for point in reversed(self.recent):
            if within(point.value, threshold):
                break
            version = point.version
        return RuleFinding(figure, threshold, version)


@dataclass(slots=True)
class VersionScores:
    """Scores of the versions against one opponent."""

    recent: list[FigurePoint] = field(default_factory=list)  # the newest evaluations
    best: FigurePoint | None = None  # greatest mean of EVALUATIONS consecutive ones

    def add(self, point: FigurePoint) -> None:
        """Add the next evaluation's score; EVALUATIONS consecutive ones have one mean."""
        self.recent = [*self.recent, point][-EVALUATIONS:]
        if len(self.recent) == EVALUATIONS:
            mean = pooled(self.recent)
            if self.best is None or mean.value > self.best.value:
                self.best = mean

    def worse(self, errors: float) -> RuleFinding | None:
        """Return a finding if the newest mean is below the best by `errors` standard errors each.

        The best of many means is partly luck, so that two standard errors would be too few.
        """
        if self.best is None or len(self.recent) < EVALUATIONS:
            return None
        mean = pooled(self.recent)
        low, _ = wilson_interval(self.best.value, round(self.best.size), errors)
        _, high = wilson_interval(mean.value, round(mean.size), errors)
        if high >= low:
            return None
        return RuleFinding(mean.value, low - (high - mean.value), self.recent[0].version)


def pooled(points: Sequence[FigurePoint]) -> FigurePoint:
    """Return the mean of points weighted by their sizes, with the version of the last."""
    size = sum(point.size for point in points)
    total = sum(point.value * point.size for point in points)
    return FigurePoint(points[-1].version, total / size, size)


def level(points: Iterable[FigurePoint]) -> float:
    """Return the median of the values."""
    return median(point.value for point in points)


def below_start(history: MetricHistory, share: float) -> RuleFinding | None:
    """Return a finding if the newest values are all below a share of the level at the start."""
    if history.least is None:
        return None
    figure = max(point.value for point in history.last)
    return history.finding(figure, share * level(history.start), ge)


def fallen(history: MetricHistory, share: float) -> RuleFinding | None:
    """Return a finding if the level is below a share of the level REACH updates before."""
    if len(history.recent) < REACH + RECENT:
        return None
    return history.finding(level(history.last), share * level(history.recent[:RECENT]), ge)


def lost(history: MetricHistory, share: float) -> RuleFinding | None:
    """Return a finding if the level is below a share of the greatest one, at least INFORMED."""
    if history.most is None or history.most.value < INFORMED:
        return None
    return history.finding(level(history.last), share * history.most.value, ge)


def grown(history: MetricHistory, times: float) -> RuleFinding | None:
    """Return a finding if the level is above `times` the least level."""
    if history.least is None:
        return None
    return history.finding(level(history.last), times * history.least.value, le)


def risen(history: MetricHistory, by: float) -> RuleFinding | None:
    """Return a finding if a share exceeds its least by more than `by`, and by more than chance.

    Chance is NOISE times the standard deviation of one update's share, if the true share is the
    upper end of the least one's 95 % interval.
    """
    if history.least is None:
        return None
    now = pooled(history.last)
    _, truth = wilson_interval(history.least.value, max(1, round(history.least.size)))
    spread = math.sqrt(truth * (1 - truth) * len(history.last) / now.size)
    return history.finding(now.value, history.least.value + max(by, NOISE * spread), le)


def above(history: MetricHistory, limit: float) -> RuleFinding | None:
    """Return a finding if the newest values are all above a limit."""
    if len(history.last) < RECENT:
        return None
    return history.finding(min(point.value for point in history.last), limit, le)


class MetricRule(NamedTuple):
    """Rule and the metric that it applies to."""

    name: Rule
    figure: str  # prefix of the metric's name
    finding: Callable[[MetricHistory, float], RuleFinding | None]


ENTROPY, ACTIONS = "learn/entropy", "collect/action_entropy/"
INFORMATION = "learn/information/"
KL_SAMPLING, KL_REFERENCE = "learn/mismatch_kl", "learn/kl_reference"
LENGTH, TRUNCATION = "learn/completion_length_mean", "learn/truncated_share"
MIRROR = VersusKey("self")
DRAWS, TIED, FORFEITS = MIRROR.name("draw"), "learn/tied_groups", "collect/versus/forfeit"
RULES = [
    MetricRule("entropy", ENTROPY, below_start),
    MetricRule("entropy", ACTIONS, below_start),
    MetricRule("entropy_fall", ENTROPY, fallen),
    MetricRule("entropy_fall", ACTIONS, fallen),
    MetricRule("information", INFORMATION, lost),
    MetricRule("kl_sampling", KL_SAMPLING, above),
    MetricRule("kl_reference", KL_REFERENCE, above),
    MetricRule("length", LENGTH, grown),
    MetricRule("truncation", TRUNCATION, risen),
    MetricRule("forfeits", FORFEITS, risen),
    MetricRule("draws", DRAWS, risen),
    MetricRule("tied", TIED, above),
]


def figures(row: Row, version: int) -> dict[str, FigurePoint]:
    """Return the figures of an update's row that rules inspect, by metric.

    Names are those of docs/metrics.md; missing metrics are left out. The KL of a turn counts at
    most SHORT tokens, since engine and learner differ slightly at every token of a long answer.
    """
    known = {name: value for name, value in row.items() if value is not None}
    found = _shares(known)
    tokens = min(known.get(LENGTH, 1.0), SHORT)
    for name, value in known.items():
        if name in (ENTROPY, LENGTH) or name.startswith((ACTIONS, INFORMATION)):
            found[name] = (value, 1.0)
        elif name in (KL_SAMPLING, KL_REFERENCE):
            found[name] = (value * tokens, 1.0)
    return {name: FigurePoint(version, *pair) for name, pair in found.items()}


def _shares(row: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return shares by metric, each with the number that it is a share of."""
    found: dict[str, tuple[float, float]] = {}
    if TRUNCATION in row and row.get("learn/samples"):
        found[TRUNCATION] = (row[TRUNCATION], row["learn/samples"])
    groups = row.get("learn/groups", 0.0) - row.get("learn/lone_groups", 0.0)
    if TIED in row and groups:
        found[TIED] = (row[TIED] / groups, groups)
    keys = [VersusKey("alone"), MIRROR, VersusKey("others")]
    results = {key: row.get(key.name("games"), 0.0) for key in keys}
    if total := sum(results.values()):
        lost = sum(n * row.get(key.name("forfeit"), 0.0) for key, n in results.items())
        found[FORFEITS] = (lost / total, total)
    if mirrors := row.get(MIRROR.name("games")):
        found[DRAWS] = (row.get(DRAWS, 0.0), mirrors / 2)  # each game counts for both seats
    return found
