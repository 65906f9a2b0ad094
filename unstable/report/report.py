"""Report of runs, from their folders to one HTML file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unstable.config import RunConfig
from unstable.records.folder import RunFolder
from unstable.records.tables import Table, facts
from unstable.records.text import command_line
from unstable.report.comparison import headline
from unstable.report.games import Sources, packed_games
from unstable.report.page import write_page
from unstable.report.run import EPOCH, HELD_OUT_LOSS, Run, read_runs
from unstable.report.sections import Section, section, sections
from unstable.report.settings import config_tables
from unstable.report.survey import GamesSurvey, survey
from unstable.report.verdict import verdict

AGAIN = (
    "config.yaml is the resolved config of the run. With loop.mode = sync and the embedded engine, "
    "a rerun on the same machine is bitwise identical."
)
FOOTER = (
    "Created by unstable report. Plots by Vega-Lite (BSD-3-Clause, {library} kB of this file). "
    "The page makes no network requests."
)


def write_report(
    roots: Sequence[Path],
    out: Path,
    library: str,
    sources: Callable[[RunConfig], Sources] = lambda _: Sources(),
    state: Callable[[RunFolder], str] = lambda _: "",
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Write the report of the runs in these folders to `out`; returns its size in bytes.

    `library` is the plotting library's JavaScript; `sources` returns other knowledge of a run's
    games; `state` returns a sentence on a run's state, "" if unknown; `tell` receives lines on
    damaged records, which are left out. Raises `ConfigError` for a folder without a run.
    """
    runs = read_runs(roots)
    surveys = [survey(run) for run in runs]
    one = runs[0]
    several = f"{len(runs)} runs compared"
    games, chunks = packed_games(runs, surveys, [sources(run.config) for run in runs])
    damage = [run.skipped.line for run in runs]
    for line in filter(None, damage):
        tell(line)
    report = {
        "title": f"{one.name} · report" if len(runs) == 1 else f"{several} · report",
        "kicker": f"unstable report · {', '.join(run.name for run in runs)}",
        "headline": verdict(one).answer if len(runs) == 1 else headline(runs),
        "runs": [
            {**_summary(run, found), "state": _sentences(state(run.folder), damaged)}
            for run, found, damaged in zip(runs, surveys, damage, strict=True)
        ],
        "sections": [*sections(runs, surveys), settings_section(runs)],
        "games": games,
        "again": AGAIN,
        "footer": FOOTER,
    }
    return write_page(out, report, chunks, library)


def _sentences(state: str, damage: str) -> str:
    said = f"{damage[0].upper()}{damage[1:]}." if damage else ""
    return " ".join(filter(None, (state, said)))


def _summary(run: Run, found: GamesSurvey) -> dict[str, Any]:
    kind, answer, reasons = verdict(run)
    seed = ("seed", f"{run.config.seed}")
    made = [("model", run.config.model.name), ("algorithm", run.config.learner.algorithm.name)]
    known = facts(run.summary) if run.rows else [("games", f"{len(found.places):,}")]
    shown = [*known, *(made if run.rows else []), seed]
    if run.is_taught:
        epochs = max((row[EPOCH] for row in run.rows if HELD_OUT_LOSS in row), default=0)
        shown = [("epochs", f"{epochs}"), ("steps", known[0][1]), made[0], seed]
    name = "sft" if run.is_taught else "train"
    again = command_line("unstable", name, "--config", run.folder.config)
    commands = [again] if run.is_training and not run.folder.offline.is_file() else []
    if run.environment is not None and run.environment.command:
        commands.insert(0, f"{run.environment.command}  # original command")
    return {
        "name": run.name,
        "label": run.label,
        "kind": kind,
        "answer": answer,
        "reasons": reasons,
        "facts": shown,
        "commands": commands,
    }


def settings_section(runs: Sequence[Run]) -> Section:
    chosen = config_tables(runs) if any(run.is_training for run in runs) else []
    return section("settings", "Configuration", [], [*chosen, _packages(runs)])


def _packages(runs: Sequence[Run]) -> Table:
    """Return a table of package versions, one column per run."""
    known = [{} if run.environment is None else run.environment.packages for run in runs]
    names = sorted({name for packages in known for name in packages})
    if not names:
        return Table("Packages", [], [], "Not recorded by this run.")
    rows = [[name, *(packages.get(name, "–") for packages in known)] for name in names]
    marked = [len(set(row[1:])) > 1 for row in rows]
    columns = ["package", *(["version"] if len(runs) == 1 else [run.label for run in runs])]
    return Table("Packages", columns, rows, marked=marked)
