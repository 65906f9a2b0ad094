"""Collapse guard: detects early that a run goes wrong, and returns the actions to take.

Finished training games, the learner's figures of each update and the scores of each evaluation come
in; alarms come out. The loop carries out the actions.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, Field

from unstable.config import Action, Rule, RunConfig
from unstable.league.rules import (
    DRAWS,
    RULES,
    THRESHOLDS,
    FigurePoint,
    MetricHistory,
    Row,
    RuleFinding,
    VersionScores,
    figures,
)
from unstable.types import PAST, Alarm, EvalScore
from unstable.types.metrics import metric_name
from unstable.types.play import PlayTally, entropy

ORDER: list[Action] = ["opponents", "rollback", "learning_rate"]
"""Actions that an alarm may lead to, in the order of their execution."""
LIKELY = 2.5
"""Standard errors that scores must be below the best ones for a rise of draws to be an alarm."""


class Best(NamedTuple):
    """Best version by its lower bound, to which a rollback returns."""

    version: int
    low: float  # lower bound of its mean score
    scores: dict[str, tuple[float, float]] = {}  # by metric name: score, lower bound; none: unknown


class GuardState(BaseModel):
    """State of the guard for a resume."""

    histories: dict[str, MetricHistory]
    scores: dict[str, VersionScores]
    best: Best | None
    quiet: dict[str, int]
    is_due: bool
    games: PlayTally = Field(default_factory=PlayTally.empty)


class Guard:
    """Monitor of a run that raises alarms; a checkpoint keeps its whole state."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config.guard
        self._temperature = config.eval.temperature[0]
        self._games = PlayTally.empty()
        self._histories: dict[str, MetricHistory] = {}
        self._scores: dict[str, VersionScores] = {}
        self._best: Best | None = None
        self._quiet: dict[str, int] = {}  # by rule, the version from which it may raise alarms
        self._is_due = False

    @property
    def best(self) -> int | None:
        """Version with the highest lower bound of its mean score over opponents; None at first."""
        return None if self._best is None else self._best.version

    @property
    def needed(self) -> frozenset[int]:
        """Versions whose whole checkpoint is kept for a rollback, now or after a resume."""
        return frozenset() if self.best is None else frozenset([self.best])

    def count(self, games: PlayTally) -> None:
        """Add the tally of finished training games; does nothing if `guard.action` is empty."""
        if self._config.action:
            self._games.add(games._replace(values={}, sequences={}))

    def check(self, version: int, metrics: Row) -> list[Alarm]:
        """Check an update's figures and the games since the last update; returns new alarms.

        `metrics` uses the names of docs/metrics.md, as do the rows of `metrics.jsonl`.
        """
        if not self._config.action:
            return []
        for name, point in figures({**metrics, **self._taken()}, version).items():
            self._histories.setdefault(name, MetricHistory()).add(point)
        alarms = []
        for rule in RULES:
            limit = self._threshold(rule.name)
            if limit is None or (rule.figure == DRAWS and not self._is_worse):
                continue
            for name, history in self._histories.items():
                if name.startswith(rule.figure) and history.recent[-1].version == version:
                    alarms += self._alarm(rule.name, name, version, rule.finding(history, limit))
        return self._new(alarms, version)

    def score(self, scores: Sequence[EvalScore]) -> list[Alarm]:
        """Check an evaluation's scores at its first temperature; returns new alarms.

        Scores against the past are left out, since the past grows stronger with the versions. The
        best version is compared against common opponents; without any it is replaced.
        """
        scores = [s for s in scores if s.temperature == self._temperature and s.opponent != PAST]
        if not scores:
            return []
        version = scores[0].version
        found = {score.key.name("score"): (score.score, score.low) for score in scores}
        low = mean_low([*found.values()])
        if self._best is None or self._is_as_good(found, low, self._best):
            self._best = Best(version, low, found)
        if not self._config.action:
            return []
        alarms = []
        for score in scores:
            name = score.key.name("score")
            scored = self._scores.setdefault(name, VersionScores())
            scored.add(FigurePoint(version, score.score, score.distinct))
            if (limit := self._threshold("score")) is not None:
                finding = scored.worse(limit)
                alarms += self._alarm("score", name, version, finding)
        return self._new(alarms, version)

    @staticmethod
    def _is_as_good(found: dict[str, tuple[float, float]], low: float, best: Best) -> bool:
        if not best.scores:  # of an earlier release
            return low >= best.low
        both = sorted(found.keys() & best.scores.keys())
        own, its = ([scores[name] for name in both] for scores in (found, best.scores))
        return not both or mean_low(own) >= mean_low(its)

    def _taken(self) -> dict[str, float]:
        """Return the metrics of the games since the last call, as far as rules may inspect them."""
        tally, self._games = self._games, PlayTally.empty()
        row: dict[str, float] = dict(tally.counts)
        row |= {name: tally.totals[name] / size for name, size in tally.weights.items() if size}
        for env, counts in tally.actions.items():
            if (nats := entropy(counts)) is not None:
                row[metric_name("collect/action_entropy", env)] = nats
        return row

    @property
    def _is_worse(self) -> bool:
        """True if the newest score is likely below the best one, against any opponent."""
        return any(scored.worse(LIKELY) for scored in self._scores.values())

    def _threshold(self, rule: Rule) -> float | None:
        return self._config.thresholds.get(rule, THRESHOLDS[rule])

    def _alarm(
        self, rule: str, name: str, version: int, finding: RuleFinding | None
    ) -> list[Alarm]:
        if finding is None or version < self._quiet.get(rule, 0):
            return []
        return [Alarm(rule=rule, name=name, version=version, **finding._asdict())]

    def _new(self, alarms: list[Alarm], version: int) -> list[Alarm]:
        """Return the first alarm of each rule, silence these rules, and mark actions as due."""
        first = list({alarm.rule: alarm for alarm in reversed(alarms)}.values())[::-1]
        for alarm in first:
            self._quiet[alarm.rule] = version + self._config.patience
        self._is_due |= bool(first)
        return first

    def take_actions(self, version: int) -> list[Action]:
        """Return the actions that are due since the last call; resets the windows if there are any.

        A warning is not an action and resets nothing.
        """
        is_due, self._is_due = self._is_due, False
        wanted = [action for action in ORDER if action in self._config.action]
        if self._best is None:
            wanted = [action for action in wanted if action != "rollback"]
        if not is_due or not wanted:
            return []
        self._histories.clear()
        for scored in self._scores.values():
            scored.recent.clear()
        self._quiet = dict.fromkeys(THRESHOLDS, version + self._config.patience)
        return wanted

    def state(self) -> GuardState:
        """Return the state that `restore` takes."""
        return GuardState(
            histories=self._histories,
            scores=self._scores,
            best=self._best,
            quiet=self._quiet,
            is_due=self._is_due,
            games=self._games,
        )

    def restore(self, state: GuardState) -> None:
        """Continue from what `state` returned."""
        self._histories, self._scores = dict(state.histories), dict(state.scores)
        self._best, self._quiet, self._is_due = state.best, dict(state.quiet), state.is_due
        self._games = PlayTally.empty()
        self._games.add(state.games)


def mean_low(scores: Sequence[tuple[float, float]]) -> float:
    """Return the lower end of the 95 % interval of the mean of independent (score, low)."""
    half = math.sqrt(sum((score - low) ** 2 for score, low in scores))
    return (sum(score for score, _ in scores) - half) / len(scores)
