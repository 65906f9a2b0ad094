"""What the runs of a sweep came to: figures over seeds, as a table, as JSON and as a page."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from unstable.records.reading import Row
from unstable.records.text import NONE, fixed, interval, number, signed
from unstable.report.charts import MOST_SERIES, Chart, Points, line_chart, thinned
from unstable.report.report import FOOTER
from unstable.types.intervals import mean, student_interval
from unstable.types.metrics import EvalKey, ExploitKey

COLUMNS = ("setting", "at the end", "difference", "best", "games", "minutes", "runs")
SEEDS = "Means over seeds, with 95 % intervals by Student's t where there are two seeds or more."
CAPTION = (
    f"{SEEDS} Difference: to the first setting, seed by seed. Best: the mean of each run's best "
    "value, which chance alone raises. Of many settings the best one looks better than it is. "
    "Games and minutes are those of a run."
)
MOST_CHARTS = 6  # of metrics beside the sweep's own
_digits = partial(fixed, digits=3)
_signed = partial(signed, digits=3)


class Measure(NamedTuple):
    """What settings are compared by: Measure("eval/Nim-v0/random/sampled/score", "max")"""

    metric: str
    goal: str

    @property
    def sign(self) -> int:
        """1 where more of it is better, else -1."""
        return 1 if self.goal == "max" else -1


class Outcome(NamedTuple):
    """What a run has come to; its rows are those up to where its setting was stopped."""

    name: str
    setting: str
    seed: int
    state: str  # waiting, running, stopped, done, failed
    rows: list[Row]
    command: str  # that makes it again
    folder: str
    line: str = ""  # the last that it has printed, where it failed

    def values(self, metric: str) -> list[tuple[int, float]]:
        """A metric's values, each with its version."""
        found = ((row["version"], row.get(metric)) for row in self.rows)
        return [(version, float(value)) for version, value in found if value is not None]

    def total(self, name: str) -> float:
        """Of all rows."""
        return sum(row.get(name) or 0 for row in self.rows)


class Spread(NamedTuple):
    """A mean over seeds, and its interval where there is one."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def sign(self) -> int:
        """1 where all of the interval is above 0, -1 where all of it is below, else 0."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


class Result(NamedTuple):
    """What the runs of a setting came to, on average."""

    setting: str
    runs: list[Outcome]
    end: Spread | None
    best: Spread | None
    difference: Spread | None  # of the end to the first setting's, over the seeds that both have
    games: float
    minutes: float


def arrival(rows: Sequence[Row], metric: str, rung: int, by: str) -> tuple[int, float] | None:
    """The first value at or after a rung, with its version; None where there is none yet."""
    games = 0.0
    for row in rows:
        games += row.get("collect/games") or 0
        value = row.get(metric)
        if value is not None and (row["version"] if by == "updates" else games) >= rung:
            return row["version"], float(value)
    return None


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and interval of values of several seeds; None of nothing."""
    if not values:
        return None
    if len(set(values)) == 1:
        return Spread(values[0])
    found = student_interval(values, least=2)
    assert found is not None, "values that differ have one"
    return Spread(*found)


def results(outcomes: Sequence[Outcome], measure: Measure) -> list[Result]:
    """Those of each setting, in the order in which settings first come."""
    found: list[Result] = []
    first: dict[int, float] = {}
    pick = max if measure.sign > 0 else min
    for setting in dict.fromkeys(each.setting for each in outcomes):
        runs = [each for each in outcomes if each.setting == setting]
        values = {run.seed: [y for _, y in run.values(measure.metric)] for run in runs}
        ends = {seed: own[-1] for seed, own in values.items() if own}
        first = first if found else ends
        played = [run for run in runs if run.rows]
        found.append(
            Result(
                setting=setting,
                runs=runs,
                end=spread([*ends.values()]),
                best=spread([pick(own) for own in values.values() if own]),
                difference=spread([ends[seed] - first[seed] for seed in ends if seed in first])
                if found
                else None,
                games=mean(run.total("collect/games") for run in played),
                minutes=mean(run.total("time/total") for run in played) / 60,
            )
        )
    return found


def cells(result: Result) -> list[str]:
    """A line of the table."""
    shown = (
        (result.end, _digits),
        (result.difference, _signed),
        (result.best, _digits),
    )
    states = [run.state for run in result.runs]
    runs = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return [
        result.setting,
        *(NONE if each is None else interval(*each, form) for each, form in shown),
        f"{result.games:,.0f}",
        f"{result.minutes:.1f}",
        runs,
    ]


def as_record(found: Sequence[Result], measure: Measure) -> dict[str, Any]:
    """The results as plain values, for JSON."""

    def of_run(run: Outcome) -> dict[str, Any]:
        values = run.values(measure.metric)
        return {
            **{name: value for name, value in run._asdict().items() if name != "rows"},
            "version": run.rows[-1]["version"] if run.rows else None,
            "values": values,
            "games": run.total("collect/games"),
            "minutes": run.total("time/total") / 60,
        }

    settings = []
    for result in found:
        values = result._asdict() | {"runs": [of_run(run) for run in result.runs]}
        for name in ("end", "best", "difference"):
            values[name] = values[name] and values[name]._asdict()
        settings.append(values)
    return {**measure._asdict(), "settings": settings}


def headline(found: Sequence[Result], measure: Measure) -> str:
    """Which setting is best by the mean at the end, and whether that can be told from the first."""
    ended = [each for each in found if each.end and any(r.state == "done" for r in each.runs)]
    if not ended:
        return "Nothing has come to its end yet."
    best = max(ended, key=lambda each: measure.sign * each.end.mean if each.end else 0.0)
    assert best.end is not None
    said = f"{best.setting} is best: {interval(*best.end, _digits)}"
    if best is found[0]:
        return f"{said}." if len(found) > 1 else f"{best.setting}: {interval(*best.end, _digits)}."
    told = best.difference is not None and best.difference.sign == measure.sign
    apart = "better than" if told else "not to be told from"
    return f"{said}, {apart} {found[0].setting}."


def sweep_page(
    name: str,
    found: Sequence[Result],
    measure: Measure,
    settings: Mapping[str, Mapping[str, Any]],
    rungs: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """What `write_page` shows: table, curves, runs, rungs and the commands.

    `settings` are the fields of each setting, `rungs` lines of a table of what was stopped.
    """
    runs = [run for result in found for run in result.runs]
    tables = [_table("Settings", COLUMNS, [cells(result) for result in found], CAPTION)]
    if rungs:
        columns = ("rung", "setting", "mean", "then")
        tables.append(_table("Stopped early", columns, rungs, "By successive halving."))
    more = "more is better" if measure.goal == "max" else "less is better"
    facts = [("metric", f"{measure.metric} ({more})"), ("settings", f"{len(found)}")]
    facts.append(("runs", f"{len(runs)}"))
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
            {"id": "results", "title": "What came out", "charts": [], "tables": tables},
            {
                **{"id": "curves", "title": "Curves", "tables": []},
                "charts": [*_charts(found, measure), *_by_seed(found, measure)],
            },
            {"id": "runs", "title": "Runs", "charts": [], "tables": [_runs(runs, measure)]},
            {
                **{"id": "settings", "title": "How it was made", "charts": []},
                "tables": [_set(settings)],
            },
        ],
        "games": {"rows": []},
        "again": "With loop.mode = sync and the embedded engine a run plays the same games to the "
        "bit on the same machine.",
        "footer": FOOTER,
    }


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = ""
) -> dict[str, Any]:
    return {"title": title, "columns": columns, "rows": rows, "caption": caption}


def _runs(runs: Sequence[Outcome], measure: Measure) -> dict[str, Any]:
    rows = []
    for run in runs:
        values = run.values(measure.metric)
        at = f"{_digits(values[-1][1])} at version {values[-1][0]}" if values else NONE
        games = number(run.total("collect/games"))
        rows.append([run.name, at, games, run.state, run.line or run.folder])
    return _table("Runs", ("run", "at the end", "games", "state", "folder, or why it failed"), rows)


def _set(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    paths = list(dict.fromkeys(path for fields in settings.values() for path in fields))
    rows = [
        [name, *(f"{fields[path]}" if path in fields else NONE for path in paths)]
        for name, fields in settings.items()
    ]
    return _table("What each setting gives", ("setting", *paths), rows)


def _charts(found: Sequence[Result], measure: Measure) -> list[Chart]:
    """The sweep's metric and the other measures, a curve a setting: mean and interval."""
    shown, caption = list(found), SEEDS
    if len(found) > MOST_SERIES:
        ranked = sorted(
            (each for each in found[1:] if each.end),
            key=lambda each: -measure.sign * each.end.mean if each.end else 0.0,
        )
        shown = [found[0], *ranked[: MOST_SERIES - 1]]
        caption += f" The first setting and the {len(shown) - 1} best are shown."
    rows = [row for result in shown for run in result.runs for row in run.rows]
    names = dict.fromkeys(name for row in rows for name in row if _is_measure(name))
    others = [name for name in names if name != measure.metric][:MOST_CHARTS]
    charts = []
    for metric in (measure.metric, *others):
        curves = {result.setting: _mean_curve(result.runs, metric) for result in shown}
        curves = {setting: points for setting, points in curves.items() if points}
        if curves:
            labels = [result.setting for result in shown]
            charts.append(line_chart(metric, metric.split("/")[-1], curves, caption, names=labels))
    return charts


def _is_measure(name: str) -> bool:
    return any(
        (parsed := kind.parse(name)) is not None and parsed[1] == figure
        for kind, figure in ((EvalKey, "score"), (ExploitKey, "high"))
    )


def _mean_curve(runs: Sequence[Outcome], metric: str) -> Points:
    by_version: dict[int, list[float]] = {}
    for run in runs:
        for version, value in run.values(metric):
            by_version.setdefault(version, []).append(value)
    points = []
    for version, values in sorted(by_version.items()):
        middle, low, high = spread(values) or Spread(0.0)
        ends = {"low": middle if low is None else low, "high": middle if high is None else high}
        points.append({"x": version, "y": middle} | (ends if len(runs) > 1 else {}))
    return thinned(points)


def _by_seed(found: Sequence[Result], measure: Measure) -> list[Chart]:
    """The sweep's metric, a chart a setting and a curve a seed; none of many settings."""
    if len(found) > MOST_SERIES:
        return []
    charts = []
    for result in found:
        curves = {
            f"seed {run.seed}": thinned([{"x": x, "y": y} for x, y in run.values(measure.metric)])
            for run in result.runs
        }
        curves = {name: points for name, points in curves.items() if points}
        if len(curves) > 1:
            unit = measure.metric.split("/")[-1]
            charts.append(line_chart(f"{result.setting}, each seed", unit, curves))
    return charts
