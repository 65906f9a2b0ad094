"""`unstable sweep`: from a file to a folder of runs, and from that folder to a table and a page."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from unstable.commands.prepare import settle
from unstable.commands.session import said, say
from unstable.commands.sweep.runner import Runner, outcomes
from unstable.commands.sweep.trials import Trial, check_trials, measure_of, trials_of
from unstable.config import ConfigError, RunFailedError, read_text, shown
from unstable.config.sweep import SweepConfig, read_sweep
from unstable.engines.needs import NEEDS
from unstable.models.hub import cache_folder
from unstable.planning.machine import Machine, this_machine
from unstable.planning.shares import Share, check_at_once, most_at_once, shares
from unstable.records.files import read_lines
from unstable.records.folder import RunFolder
from unstable.records.sweep import SweepFolder
from unstable.records.text import command_line, fixed
from unstable.report.page import plot_library, write_page
from unstable.report.sweep import COLUMNS, Measure, Result, as_record, cells, results, sweep_page
from unstable.tracking.lines import RunConsole
from unstable.tracking.text import Text


def begin(path: Path, out: Path | None, *, plan_only: bool = False) -> SweepFolder:
    """Run the sweep of a file, in `out` or outputs/<its name>; returns its folder.

    With `plan_only` it prints the runs' commands and starts nothing. Raises `ConfigError` for a
    mistake before anything starts, `RunFailedError` once all is over where runs have failed, and
    what an interrupt raises.
    """
    place = f"FILE = {str(path)!r}"
    sweep = read_sweep(read_text(path, place), place)
    folder = SweepFolder(out or Path("outputs") / (sweep.name or path.stem))
    if folder.root.exists():
        again = command_line("unstable", "sweep", folder.root)
        raise ConfigError(f"{folder.root} exists; to go on: {again}; else give another --out")
    trials = trials_of(sweep)
    machine = this_machine()
    with said():
        measure = measure_of(sweep, trials[0].config)
        check_trials(sweep, trials, measure)
        at_once = _at_once(sweep, trials, machine)
    chosen = {**measure._asdict(), "at_once": at_once}
    sweep = sweep.model_copy(update=chosen)
    if plan_only:
        for trial in trials:
            print(trial.command)
        say(f"{_size(sweep, trials)}, {at_once} at a time, by {measure.metric} ({measure.goal})")
        return folder
    folder.make(sweep, [trial.record() for trial in trials])
    _run(folder, sweep, trials, machine)
    return folder


def go_on(root: Path, *, retry: bool = False) -> SweepFolder:
    """Go on with a sweep, whatever ended it; errors as above. `retry`: runs that failed, too."""
    folder, sweep, trials = _read(root)
    kept = {row["trial"]: row["digest"] for _, row in read_lines(folder.trials)}
    for trial in trials:
        record = trial.record()
        if kept.get(trial.name) != record["digest"] and not folder.run(trial.name).root.exists():
            raise ConfigError(
                f"{trial.name}: its config is no longer what it was when the sweep began; put "
                f"{trial.setting.config} back as it was, or begin another sweep"
            )
    _run(folder, sweep, trials, this_machine(), retry=retry)
    return folder


def show(root: Path, *, as_json: bool = False) -> None:
    """Print a sweep's table, or all of its figures as JSON; starts nothing."""
    folder, sweep, trials = _read(root)
    found = _results(folder, sweep, trials)
    if as_json:
        print(json.dumps({"format": 1, **as_record(found, _measure(sweep))}))
    else:
        _print(found, _measure(sweep))


def _read(root: Path) -> tuple[SweepFolder, SweepConfig, list[Trial]]:
    folder = SweepFolder(root)
    if not folder.file.is_file():
        raise ConfigError(
            f"FOLDER = {str(root)!r} holds no sweep.yaml; give a folder that unstable sweep left"
        )
    sweep = folder.read()
    return folder, sweep, trials_of(sweep)


def _size(sweep: SweepConfig, trials: Sequence[Trial]) -> str:
    seeds = len(sweep.seeds)
    return f"{len(trials)} runs ({len(trials) // seeds} settings, {seeds} seeds)"


def _measure(sweep: SweepConfig) -> Measure:
    assert sweep.metric is not None and sweep.goal is not None, "a folder's sweep names both"
    return Measure(sweep.metric, sweep.goal)


def _at_once(sweep: SweepConfig, trials: Sequence[Trial], machine: Machine) -> int:
    """Runs at a time; raises `ConfigError` where that many do not fit."""
    settings = trials[: len(trials) // len(sweep.seeds)]
    configs = [settle(trial.config) for trial in settings]
    if sweep.at_once == "auto":
        return min(len(trials), most_at_once(configs, machine, NEEDS))
    for trial, config in zip(settings, configs, strict=True):
        try:
            check_at_once(config, machine, sweep.at_once, NEEDS)
        except ConfigError as error:
            raise ConfigError(f"{trial.setting.name}: {error}") from None
    return sweep.at_once


def _run(
    folder: SweepFolder,
    sweep: SweepConfig,
    trials: Sequence[Trial],
    machine: Machine,
    *,
    retry: bool = False,
) -> None:
    measure = _measure(sweep)
    count = _at_once(sweep, trials, machine)
    parts: list[Share | None] = [None]  # alone, a run has all of the machine
    if count > 1:
        parts = [*shares(machine, count, sorted(os.sched_getaffinity(0)))]
    with RunFolder(folder.root).held(f"FOLDER = {str(folder.root)!r}"):
        if retry:
            folder.forget_failures()
        say(f"{_size(sweep, trials)}, {count} at a time, in {folder.root}")

        def changed() -> None:
            _write(folder, sweep, trials)

        try:
            Runner(folder, sweep, trials, measure, parts, changed).run()
        except KeyboardInterrupt:
            _end(folder, sweep, trials)
            say(f"to go on: {command_line('unstable', 'sweep', folder.root)}")
            raise
        _end(folder, sweep, trials)
    if failures := folder.failures():
        again = command_line("unstable", "sweep", folder.root, "--retry")
        raise RunFailedError(f"{len(failures)} of {len(trials)} runs failed; to try again: {again}")


def _results(folder: SweepFolder, sweep: SweepConfig, trials: Sequence[Trial]) -> list[Result]:
    measure = _measure(sweep)
    return results(outcomes(folder, sweep, trials, measure), measure)


def _write(folder: SweepFolder, sweep: SweepConfig, trials: Sequence[Trial]) -> list[Result]:
    """Write the page; returns what is in it."""
    found = _results(folder, sweep, trials)
    fields = {each.setting.name: each.setting.fields for each in trials}
    rungs = [
        [f"{each.rung}", name, fixed(value, 3), "goes on" if name in each.kept else "stopped"]
        for each in folder.decisions()
        for name, value in each.values.items()
    ]
    name = sweep.name or folder.root.name
    page = sweep_page(name, found, _measure(sweep), fields, rungs)
    write_page(folder.report, page, [], plot_library(cache_folder()))
    return found


def _end(folder: SweepFolder, sweep: SweepConfig, trials: Sequence[Trial]) -> None:
    _print(_write(folder, sweep, trials), _measure(sweep))
    print(f"report: {folder.report}")


def _print(found: Sequence[Result], measure: Measure) -> None:
    table = Table(box=None, pad_edge=False, title=f"{measure.metric} ({measure.goal})")
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for result in found:
        table.add_row(*map(Text, cells(result)))
    console = RunConsole()
    console.print(table)
    for run in (each for result in found for each in result.runs if each.line):
        console.print(Text(f"failed: {run.name}: {shown(run.line)}"))
