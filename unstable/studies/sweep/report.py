"""Results of a sweep's runs: figures over seeds, as a table, as JSON and as a page."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from unstable.records.reading import Row
from unstable.records.tables import Table
from unstable.records.text import NONE, fixed, interval, number, signed
from unstable.report.charts import MOST_SERIES, Chart, Points, line_chart, thinned
from unstable.report.report import FOOTER
from unstable.report.sections import section
from unstable.types.intervals import Z, mean, student_interval, z_of_each
from unstable.types.metrics import EvalKey, ExploitKey

COLUMNS = ("setting", "final", "difference", "best", "games", "minutes", "runs")
BAND = "Mean over seeds; the band is from the lowest to the highest seed."
CAPTION = (
    "Means over seeds, with 95 % Student's t intervals. Difference: to the first setting, paired "
    "by seed; for unfinished runs at the last version that both have. Best: mean of each run's "
    "best value, which is biased upward, as is the best of many settings. Games and minutes are "
    "means per run."
)
MOST_CHARTS = 6  # in addition to the sweep's metric
MOST_DIFFERENCE = 1.1
"""Largest ratio of games per version between settings for which curves are over versions."""
ANY = (-math.inf, math.inf)
_digits = partial(fixed, digits=3)
_signed = partial(signed, digits=3)


class Measure(NamedTuple):
    """Metric that compares settings: Measure("eval/Nim-v0/random/sampled/score", "max")"""

    metric: str
    goal: str

    @property
    def sign(self) -> int:
        """1 if more is better, else -1."""
        return 1 if self.goal == "max" else -1

    @property
    def range(self) -> tuple[float, float]:
        """Least and greatest possible value: (0, 1) for a score, else unbounded."""
        parsed = EvalKey.parse(self.metric)
        return (0.0, 1.0) if parsed is not None and parsed[1] == "score" else ANY

    @property
    def text(self) -> str:
        """Metric and goal in words."""
        return f"{self.metric} ({'higher' if self.goal == 'max' else 'lower'} is better)"


class Outcome(NamedTuple):
    """Outcome of a run; its rows end where its setting was stopped."""

    name: str
    setting: str
    seed: int
    state: str  # waiting, running, stopped, done, failed
    rows: list[Row]
    command: str  # command that repeats the run
    folder: str
    line: str = ""  # last printed line if it failed, or a note on damaged rows

    def values(self, metric: str) -> list[tuple[int, float]]:
        """Return a metric's values, each with its version."""
        found = ((row["version"], row.get(metric)) for row in self.rows)
        return [(version, float(value)) for version, value in found if value is not None]

    def total(self, name: str) -> float:
        """Return the sum of a metric over all rows."""
        return sum(row.get(name) or 0 for row in self.rows)


class Spread(NamedTuple):
    """A mean over seeds, and its 95 % interval; None for a single value or equal ones."""

    mean: float
    low: float | None = None
    high: float | None = None


class Result(NamedTuple):
    """Results of a setting, averaged over its runs."""

    setting: str
    runs: list[Outcome]
    end: Spread | None
    best: Spread | None
    difference: Spread | None  # to the first setting
    games: float
    minutes: float


def arrival(
    rows: Sequence[Row], metric: str, rung: int, by: str, *, ended: bool = False
) -> tuple[int, float] | None:
    """Return the first value at or after a rung, with its version; None if there is none yet.

    For a run that ended before the rung, as happens with rungs by games, return the last value.
    """
    games, last = 0.0, None
    for row in rows:
        games += row.get("collect/games") or 0
        if (value := row.get(metric)) is not None:
            last = row["version"], float(value)
            if (row["version"] if by == "updates" else games) >= rung:
                return last
    return last if ended else None


def spread(
    values: Sequence[float], z: float = Z, range_: tuple[float, float] = ANY
) -> Spread | None:
    """Return mean and interval over seeds, clipped to a range; None without values."""
    if not values:
        return None
    if len(set(values)) == 1:
        return Spread(values[0])
    found = student_interval(values, least=2, z=z)
    assert found is not None, "distinct values have an interval"
    return Spread(found.mean, max(found.low, range_[0]), min(found.high, range_[1]))


def results(outcomes: Sequence[Outcome], measure: Measure) -> list[Result]:
    """Return the result of each setting, in order of first appearance."""
    found: list[Result] = []
    for setting in dict.fromkeys(each.setting for each in outcomes):
        runs = [each for each in outcomes if each.setting == setting]
        values = [[y for _, y in run.values(measure.metric)] for run in runs]
        pick = max if measure.sign > 0 else min
        played = [run for run in runs if run.rows]
        found.append(
            Result(
                setting=setting,
                runs=runs,
                end=spread([own[-1] for own in values if own], range_=measure.range),
                best=spread([pick(own) for own in values if own], range_=measure.range),
                difference=_difference(found[0].runs, runs, measure) if found else None,
                games=mean(run.total("collect/games") for run in played),
                minutes=mean(run.total("time/total") for run in played) / 60,
            )
        )
    return found


def _difference(
    first: Sequence[Outcome], second: Sequence[Outcome], measure: Measure, z: float = Z
) -> Spread | None:
    """Return the second setting's values minus the first's, over the seeds that both have.

    Compares the last values if both runs are done, else values at the last version of both.
    """
    own, gains = {run.seed: run for run in first}, []
    for run in second:
        pair = [each for each in (own.get(run.seed), run) if each is not None]
        values = [each.values(measure.metric) for each in pair]
        if len(pair) < 2 or not all(values):
            continue
        both = min(each[-1][0] for each in values)
        if all(each.state == "done" for each in pair):
            both = max(each[-1][0] for each in values)
        ends = [[y for x, y in each if x <= both] for each in values]
        gains += [ends[1][-1] - ends[0][-1]] if all(ends) else []
    width = measure.range[1] - measure.range[0]
    return spread(gains, z, (-width, width))


def cells(result: Result) -> list[str]:
    """Return a row of the table."""
    shown = (result.end, _digits), (result.difference, _signed), (result.best, _digits)
    states = [run.state for run in result.runs]
    return [
        result.setting,
        *(NONE if each is None else interval(*each, form) for each, form in shown),
        f"{result.games:,.0f}",
        f"{result.minutes:.1f}",
        ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
    ]


def as_record(found: Sequence[Result], measure: Measure) -> dict[str, Any]:
    """Return the results as plain values, for JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, Outcome):
            own = {name: each for name, each in value._asdict().items() if name != "rows"}
            return {**own, "values": value.values(measure.metric)}
        if isinstance(value, Spread):
            return value._asdict()
        return [plain(each) for each in value] if isinstance(value, list) else value

    settings = [{name: plain(each) for name, each in result._asdict().items()} for result in found]
    return {**measure._asdict(), "settings": settings}


def headline(found: Sequence[Result], measure: Measure) -> str:
    """Return a sentence on the best setting by the mean at the end, and whether it is clearly best.

    Based on differences from the first setting, whose intervals hold jointly with 95 %.
    """
    ended = [each for each in found if any(run.state == "done" for run in each.runs)]
    ranked = _ranked(ended, measure)
    if not ranked:
        return "No run has finished yet."
    best = ranked[0]
    said = f"{best.setting} is best: {interval(*(best.end or Spread(0.0)), _digits)}"
    first, others = found[0], [each for each in ranked if each is not found[0]]
    z = z_of_each(len(others))

    def is_better(one: Result, sign: float) -> bool:
        """Return whether a setting is better than the first one, or with sign -1 worse."""
        found = _difference(first.runs, one.runs, measure, z)
        if found is None or found.low is None or found.high is None:
            return False
        return min(sign * measure.sign * end for end in (found.low, found.high)) > 0

    if best is not first:
        apart = "better than" if is_better(best, 1) else "not clearly different from"
        return f"{said}, {apart} {first.setting}."
    alike = [each.setting for each in others if not is_better(each, -1)]
    if alike:
        more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
        return f"{said}, not clearly different from {', '.join(alike[:3])}{more}."
    return f"{said}, better than all others." if others else f"{said}."


def _ranked(found: Sequence[Result], measure: Measure) -> list[Result]:
    """Return the results that have a value, best first."""
    means = {each.setting: measure.sign * each.end.mean for each in found if each.end}
    known = [each for each in found if each.setting in means]
    return sorted(known, key=lambda each: -means[each.setting])


def sweep_page(
    name: str,
    found: Sequence[Result],
    measure: Measure,
    settings: Mapping[str, Mapping[str, Any]],
    rungs: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """Return the content for `write_page`: table, curves, runs, rungs and commands.

    `settings` are the fields of each setting, `rungs` the rows of the table of decisions.
    """
    runs = [run for result in found for run in result.runs]
    tables = [Table("Settings", COLUMNS, [cells(result) for result in found], CAPTION)]
    if rungs:
        columns = ("rung", "setting", "mean", "decision")
        tables.append(Table("Early stopping", columns, rungs, "By successive halving."))
    facts = [("metric", measure.text), ("settings", f"{len(found)}"), ("runs", f"{len(runs)}")]
    return {
        "title": f"{name} · sweep",
        "kicker": f"unstable sweep · {name}",
        "headline": headline(found, measure),
        "runs": [
            {
                **{"name": name, "label": name, "kind": "", "answer": "", "reasons": []},
                **{"state": "", "facts": facts, "commands": [run.command for run in runs]},
            }
        ],
        "sections": [
            section("results", "Results", [], tables),
            section("curves", "Curves", _charts(found, measure), []),
            section("runs", "Runs", [], [_runs(runs, measure)]),
            section("settings", "Configuration", [], [_set(settings)]),
        ],
        "games": {"rows": []},
        "again": "With loop.mode = sync and the embedded engine, a run repeats exactly on the same "
        "machine.",
        "footer": FOOTER,
    }


def _runs(runs: Sequence[Outcome], measure: Measure) -> Table:
    rows = []
    for run in runs:
        values = run.values(measure.metric)
        at = f"{_digits(values[-1][1])} at version {values[-1][0]}" if values else NONE
        games = number(run.total("collect/games"))
        rows.append([run.name, at, games, run.state, run.line or run.folder])
    return Table("Runs", ("run", "final", "games", "state", "folder or error"), rows)


def _set(settings: Mapping[str, Mapping[str, Any]]) -> Table:
    paths = list(dict.fromkeys(path for fields in settings.values() for path in fields))
    rows = [
        [name, *(f"{fields[path]}" if path in fields else NONE for path in paths)]
        for name, fields in settings.items()
    ]
    return Table("Fields of each setting", ("setting", *paths), rows)


def _charts(found: Sequence[Result], measure: Measure) -> list[Chart]:
    """Return charts of the sweep's metric and of other measures, one curve per setting."""
    shown, caption = list(found), BAND
    if len(found) > MOST_SERIES:
        best = _ranked(found[1:], measure)[: MOST_SERIES - 1]
        shown = [found[0], *best]
        caption += f" The first setting and the {len(best)} best are shown."
    rows = [row for result in shown for run in result.runs for row in run.rows]
    names = dict.fromkeys(name for row in rows for name in row if _is_measure(name))
    others = [name for name in names if name != measure.metric][:MOST_CHARTS]
    charts, over = [], "games" if _differ_in_games(shown) else "version"
    for metric in (measure.metric, *others):
        curves = {result.setting: _curve(result.runs, metric, over) for result in shown}
        labels, curves = list(curves), {name: each for name, each in curves.items() if each}
        if curves:
            unit = metric.split("/")[-1]
            charts.append(line_chart(metric, unit, curves, caption, names=labels, over=over))
    return charts


def _differ_in_games(found: Sequence[Result]) -> bool:
    """Return whether games per version differ between settings, so that curves are over games."""
    costs = [
        mean(run.total("collect/games") / run.rows[-1]["version"] for run in made)
        for result in found
        if (made := [run for run in result.runs if run.rows and run.rows[-1]["version"]])
    ]
    return max(costs, default=0) > MOST_DIFFERENCE * min(costs, default=0)


def _is_measure(name: str) -> bool:
    score, exploitability = EvalKey.parse(name), ExploitKey.parse(name)
    return (score and score[1]) == "score" or (exploitability and exploitability[1]) == "high"


def _curve(runs: Sequence[Outcome], metric: str, over: str) -> Points:
    """Return mean, least and greatest value over seeds, by version or by games until then."""
    by_version: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        games = 0.0
        for row in run.rows:
            games += row.get("collect/games") or 0
            if (value := row.get(metric)) is not None:
                by_version.setdefault(row["version"], []).append((games, float(value)))
    points = []
    for version, found in sorted(by_version.items()):
        own = [value for _, value in found]
        ends = {"low": min(own), "high": max(own)} if len(runs) > 1 else {}
        x = version if over == "version" else round(mean(games for games, _ in found))
        points.append({"x": x, "y": mean(own), **ends})
    return thinned(points)
