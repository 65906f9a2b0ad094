"""The guard's rules: what the history of a metric says, as pure functions.

Three updates speak together, so that one alone is never an alarm. A level refers to the run's own,
its first one or its least, so that a threshold is not a matter of the model or the game.
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
    "kl_sampling": 0.1,  # nats a turn
    "kl_reference": 3.0,  # nats a turn
    "length": 1.5,
    "truncation": 0.05,
    "forfeits": 0.1,
    "draws": 0.3,
    "tied": 0.95,
    "score": 3.0,  # standard errors
}
"""Threshold of each rule, unless the config has another; docs/guard.md says what and why."""
EVALUATIONS = 3
"""Evaluations in a row whose mean is a score."""
START = 5
"""Updates that a level refers to: the first ones, or those in a row that have the least."""
RECENT = 3
"""Newest updates that a rule looks at."""
REACH = 10
"""Updates within which a fall is sudden."""
NOISE = 5.0
"""Standard deviations of an update's share that a rise has to exceed, besides its threshold."""
SHORT = 8
"""Tokens of an answer that count in a KL of a turn, at most."""

Row = Mapping[str, float | None]


class FigurePoint(NamedTuple):
    """A figure of one update, and how many things it is the mean of."""

    version: int
    value: float
    size: float = 1.0


class RuleFinding(NamedTuple):
    """A broken rule: by which figure, against what, and since which version."""

    figure: float
    threshold: float
    since: int


@dataclass(slots=True)
class MetricHistory:
    """A metric over the updates, as far back as rules look."""

    start: list[FigurePoint] = field(default_factory=list)  # the first START
    recent: list[FigurePoint] = field(default_factory=list)  # the newest ones
    least: FigurePoint | None = None  # mean of those START in a row that have the least

    def add(self, point: FigurePoint) -> None:
        """Take in the next update's."""
        self.recent = [*self.recent, point][-REACH - RECENT :]
        if len(self.start) < START:
            self.start.append(point)
        if len(self.recent) >= START:
            mean = pooled(self.recent[-START:])
            if self.least is None or mean.value < self.least.value:
                self.least = mean

    @property
    def last(self) -> list[FigurePoint]:
        """The newest RECENT."""
        return self.recent[-RECENT:]

    @property
    def is_known(self) -> bool:
        """Whether there is a level to refer to."""
        return self.least is not None

    def finding(
        self, figure: float, threshold: float, within: Callable[[float, float], bool]
    ) -> RuleFinding | None:
        """A figure that is not within the threshold, and since which version no value is."""
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
    """How versions scored against one opponent."""

    recent: list[FigurePoint] = field(default_factory=list)  # the newest evaluations
    best: FigurePoint | None = None  # mean of those in a row that have the greatest

    def add(self, point: FigurePoint) -> None:
        """Take in the next evaluation's; EVALUATIONS in a row are one mean."""
        self.recent = [*self.recent, point][-EVALUATIONS:]
        if len(self.recent) == EVALUATIONS:
            mean = pooled(self.recent)
            if self.best is None or mean.value > self.best.value:
                self.best = mean

    def worse(self, errors: float) -> RuleFinding | None:
        """The newest mean is below the best by so many standard errors of each.

        The best of many is partly luck: two would not be much.
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
    """Their mean over all that was counted."""
    size = sum(point.size for point in points)
    total = sum(point.value * point.size for point in points)
    return FigurePoint(points[-1].version, total / size, size)


def level(points: Iterable[FigurePoint]) -> float:
    """Their median."""
    return median(point.value for point in points)


def below_start(history: MetricHistory, share: float) -> RuleFinding | None:
    """The newest values are all below a share of what they were at the start."""
    if not history.is_known:
        return None
    figure = max(point.value for point in history.last)
    return history.finding(figure, share * level(history.start), ge)


def fallen(history: MetricHistory, share: float) -> RuleFinding | None:
    """The level is below a share of what it was REACH updates before."""
    if len(history.recent) < REACH + RECENT:
        return None
    return history.finding(level(history.last), share * level(history.recent[:RECENT]), ge)


def grown(history: MetricHistory, times: float) -> RuleFinding | None:
    """The level is above so many times the least."""
    if history.least is None:
        return None
    return history.finding(level(history.last), times * history.least.value, le)


def risen(history: MetricHistory, by: float) -> RuleFinding | None:
    """A share is above the least by a threshold, and by more than chance explains.

    Chance is the spread of one update's share if the truth is the upper end of the least's 95 %
    interval.
    """
    if history.least is None:
        return None
    now = pooled(history.last)
    _, truth = wilson_interval(history.least.value, max(1, round(history.least.size)))
    spread = math.sqrt(truth * (1 - truth) * len(history.last) / now.size)
    return history.finding(now.value, history.least.value + max(by, NOISE * spread), le)


def above(history: MetricHistory, limit: float) -> RuleFinding | None:
    """The newest values are all above a limit."""
    if len(history.last) < RECENT:
        return None
    return history.finding(min(point.value for point in history.last), limit, le)


class MetricRule(NamedTuple):
    """A rule and the metric that it is for."""

    name: Rule
    figure: str  # what its name begins with
    finding: Callable[[MetricHistory, float], RuleFinding | None]


ENTROPY, ACTIONS = "learn/entropy", "collect/action_entropy/"
KL_SAMPLING, KL_REFERENCE = "learn/mismatch_kl", "learn/kl_reference"
LENGTH, TRUNCATION = "learn/completion_length_mean", "learn/truncated_share"
MIRROR = VersusKey("self")
DRAWS, TIED, FORFEITS = MIRROR.name("draw"), "learn/tied_groups", "collect/versus/forfeit"
RULES = [
    MetricRule("entropy", ENTROPY, below_start),
    MetricRule("entropy", ACTIONS, below_start),
    MetricRule("entropy_fall", ENTROPY, fallen),
    MetricRule("entropy_fall", ACTIONS, fallen),
    MetricRule("kl_sampling", KL_SAMPLING, above),
    MetricRule("kl_reference", KL_REFERENCE, above),
    MetricRule("length", LENGTH, grown),
    MetricRule("truncation", TRUNCATION, risen),
    MetricRule("forfeits", FORFEITS, risen),
    MetricRule("draws", DRAWS, risen),
    MetricRule("tied", TIED, above),
]


def figures(row: Row, version: int) -> dict[str, FigurePoint]:
    """What rules look at in an update's row, by the metric that it is made of.

    Names are those of docs/metrics.md; what a row lacks is left out. A KL of a turn counts SHORT
    tokens at most: engine and learner differ a little at every token of a long answer.
    """
    known = {name: value for name, value in row.items() if value is not None}
    found = _shares(known)
    tokens = min(known.get(LENGTH, 1.0), SHORT)
    for name, value in known.items():
        if name in (ENTROPY, LENGTH) or name.startswith(ACTIONS):
            found[name] = (value, 1.0)
        elif name in (KL_SAMPLING, KL_REFERENCE):
            found[name] = (value * tokens, 1.0)
    return {name: FigurePoint(version, *pair) for name, pair in found.items()}


def _shares(row: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Shares by name, each with what it is a share of."""
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
        found[DRAWS] = (row.get(DRAWS, 0.0), mirrors / 2)  # both seats draw a game
    return found
