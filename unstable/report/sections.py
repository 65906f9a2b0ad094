"""Charts and tables of a report, in the order of a reader's questions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unstable.records import tables
from unstable.records.reading import Row, by_key, measured
from unstable.records.summary import RunSummary
from unstable.records.tables import Table
from unstable.report.charts import (
    MOST_SERIES,
    Chart,
    Points,
    area_chart,
    heat_map,
    line_chart,
    thinned,
)
from unstable.report.comparison import CAPTION, difference_rows
from unstable.report.run import Run, against
from unstable.report.survey import GamesSurvey, payoff_cells
from unstable.types.metrics import SUMS, RatingKey, unit

Section = dict[str, Any]
Curves = dict[str, Points]
PHASES = "time/"
STALENESS = {"learn/staleness_mean": "mean", "learn/staleness_max": "maximum"}
HEALTH = {
    "collect/length_share": "truncated at max_tokens",
    "collect/invalid_share": "rejected as invalid",
}


PAYOFFS = (
    "Mean outcome of the row's player against the column's, in all {:,} recorded games, "
    "evaluations included; below it the number of results (one per game and ordered pair of "
    "opposing seats or teams). v12 is version 12 of the policy; many versions are grouped."
)


def sections(runs: Sequence[Run], surveys: Sequence[GamesSurvey]) -> list[Section]:
    """Return all sections but games and settings; what a run did not measure is left out."""
    found = [
        section(
            *("learning", "Performance", _learning(runs)),
            [
                *_differences(runs),
                *_of_each(runs, tables.evaluations),
                *_of_each(runs, tables.exploitability),
            ],
        ),
        section(*("players", "Players", _players(runs, surveys)), _of_each(runs, tables.worst)),
        section("training", "Training", _training(runs), _guard(runs)),
    ]
    return [each for each in found if each["charts"] or each["tables"]]


def section(name: str, title: str, charts: Sequence[Chart], shown: Sequence[Table]) -> Section:
    """Return the content of a section of the page: charts and tables under a title."""
    found = [table._asdict() for table in shown]
    return {"id": name, "title": title, "charts": [*charts], "tables": found}


def _compared(
    runs: Sequence[Run],
    title: str,
    unit: str,
    pick: Callable[[Run], Curves],
    caption: str = "",
    zero: bool = False,
) -> list[Chart]:
    """Return one chart of a run's curves; for several runs, one chart per curve with all runs."""
    picked = {run.label: pick(run) for run in runs}
    if len(runs) == 1:
        (curves,) = picked.values()
        return [line_chart(title, unit, curves, caption, zero)] if curves else []
    names = list(dict.fromkeys(name for curves in picked.values() for name in curves))
    further = len(names) - MOST_SERIES
    if further > 0:
        caption = f"{caption} The charts of {further} further curves are not shown.".strip()
    return [
        line_chart(
            f"{title}: {name}" if len(names) > 1 else title,
            unit,
            {run: curves[name] for run, curves in picked.items() if name in curves},
            caption,
            zero,
            list(picked),
        )
        for name in names[:MOST_SERIES]
    ]


def _curve(rows: Sequence[Row], name: str) -> Points:
    """Return a metric over versions, thinned; [] if it has no value."""
    points = ((row["version"], row.get(name)) for row in rows)
    return thinned([{"x": x, "y": y} for x, y in points if y is not None])


def _metrics(names: Mapping[str, str]) -> Callable[[Run], Curves]:
    """Return a function that picks metrics from a run, each labeled with its curve's name."""

    def pick(run: Run) -> Curves:
        curves = {label: _curve(run.updates, name) for name, label in names.items()}
        return {label: points for label, points in curves.items() if points}

    return pick


def _learning(runs: Sequence[Run]) -> list[Chart]:
    return [
        *_compared(
            *(runs, "Score by version", "score", score_curves),
            "Wins plus half the draws, per evaluation game, with 95 % confidence intervals.",
        ),
        *_compared(
            *(runs, "Exploitability", "payoff", _exploitability),
            "NashConv / 2 for any number of seats, in the game's payoff unit; 0 is an equilibrium. "
            "The band spans the two ways to count illegal answers.",
            zero=True,
        ),
        *_compared(
            *(runs, "Reward", unit("collect/reward"), _metrics({"collect/reward": "reward"})),
            "Mean reward per sample. In self-play it says little: the opponent learns too.",
        ),
    ]


def score_curves(run: Run) -> Curves:
    curves: Curves = {}
    for key, found in run.summary.evaluations.items():
        curves[against(run, key)] = [
            {"x": version, "y": figures["score"], "low": figures["low"], "high": figures["high"]}
            for version, _, figures in found
        ]
    return curves


def _exploitability(run: Run) -> Curves:
    curves: Curves = {}
    for key, found in run.summary.exploitability.items():
        ends = [(version, figures["low"], figures["high"]) for version, _, figures in found]
        curves[key.env] = [
            {"x": version, "y": (low + high) / 2, "low": low, "high": high}
            for version, low, high in ends
        ]
    return curves


def _players(runs: Sequence[Run], surveys: Sequence[GamesSurvey]) -> list[Chart]:
    charts = _compared(
        *(runs, "Ratings", "TrueSkill mu", _ratings),
        "Estimated skill, plus and minus one sigma; “policy” is the newest version.",
    )
    several = len({env for found in surveys for env in found.games}) > 1
    for run, found in zip(runs, surveys, strict=True):
        of = f": {run.label}" if len(runs) > 1 else ""
        opponents = _opponents(run)
        if len(opponents) > 1:
            caption = "Share of the training games by opponent."
            charts.append(area_chart(f"Opponents{of}", "share", opponents, caption, share=True))
        for env, pairs in found.pairs.items():
            if pairs:
                title = ", ".join([f"Outcome matrix{of}", *([env] if several else [])])
                cells, names = payoff_cells(pairs)
                caption = PAYOFFS.format(found.games[env])
                charts.append(heat_map(title, cells, names, caption))
    return charts


def _ratings(run: Run) -> Curves:
    curves = {}
    for key, found in by_key(measured(RatingKey, run.rows, "mu")).items():
        points = [
            {"x": each.version, "y": each.figures["mu"], "sigma": each.figures["sigma"]}
            for each in found
        ]
        if len({point["sigma"] for point in points}) > 1:  # else no rated players have met
            curves[key.player] = [
                {"x": p["x"], "y": p["y"], "low": p["y"] - p["sigma"], "high": p["y"] + p["sigma"]}
                for p in thinned(points)
            ]
    return curves


def _opponents(run: Run) -> Curves:
    curves = {
        key.opponent: _curve(run.updates, key.name("share"))
        for key in run.summary.opponents
        if key.opponent not in SUMS
    }
    return {label: points for label, points in curves.items() if any(p["y"] for p in points)}


def _training(runs: Sequence[Run]) -> list[Chart]:
    charts = [
        *_compared(
            *(runs, "Entropy", unit("learn/entropy"), _metrics({"learn/entropy": "entropy"})),
            "Entropy of the policy at the trained tokens: near 0 its answers never vary.",
            zero=True,
        ),
        *_compared(
            *(runs, "Truncated and invalid answers", "share of turns", _metrics(HEALTH)), zero=True
        ),
        *_compared(
            *(runs, "Staleness", unit("learn/staleness_mean"), _metrics(STALENESS)),
            "Number of versions between sampling and training.",
            zero=True,
        ),
    ]
    for run in runs:
        of = f": {run.label}" if len(runs) > 1 else ""
        seconds = _seconds(run)
        start = run.summary.totals["time/starting"]
        caption = f"Seconds per update by phase that the loop waited for; startup: {start:.0f} s."
        if seconds:
            charts.append(area_chart(f"Time{of}", "seconds", seconds, caption))
    return charts


def _seconds(run: Run) -> Curves:
    names = dict.fromkeys(name for row in run.rows for name in row if name.startswith(PHASES))
    labels = (name.removeprefix(PHASES) for name in names)
    parts = [label for label in labels if label not in ("total", "starting")]
    curves = {label: _curve(run.updates, PHASES + label) for label in parts}
    return {label: points for label, points in curves.items() if any(p["y"] for p in points)}


def _differences(runs: Sequence[Run]) -> list[Table]:
    """Return a table of how the other runs' last measures differ from the first run's."""
    rows = difference_rows(runs)
    first = runs[0].label
    columns = ["run", "measure", first, "other run", "difference", "games", "better"]
    return [Table(f"Compared with {first}", columns, rows, CAPTION)] if rows else []


def _of_each(runs: Sequence[Run], make: Callable[[RunSummary], Table]) -> list[Table]:
    """Return one table of the runs' results; [] if no run has any."""
    made = {run.label: table for run in runs if (table := make(run.summary)).rows}
    return [tables.merged(made)] if made and len(runs) > 1 else [*made.values()]


def _guard(runs: Sequence[Run]) -> list[Table]:
    """Return the guard's alarms and actions, or a table that states that there were none."""
    found = _of_each(runs, tables.guard)
    return found or [tables.guard(run.summary) for run in runs if run.rows][:1]
