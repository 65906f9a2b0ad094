"""`unstable sweep`: from a file to a folder of runs, and from that folder to a table and a page."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from rich.table import Table

from unstable.commands.session import starting, status
from unstable.config import FORMAT, ConfigError, read_text
from unstable.models.hub import cache_folder
from unstable.planning.machine import Machine, this_machine
from unstable.records.text import fixed
from unstable.report.page import plot_library, write_page
from unstable.studies.several import carry_out, parts, refuse_existing, runs_at_once
from unstable.studies.sweep.config import read_sweep
from unstable.studies.sweep.folder import SweepFolder
from unstable.studies.sweep.report import COLUMNS, Result, as_record, cells, results, sweep_page
from unstable.studies.sweep.runner import Runner, outcomes
from unstable.studies.sweep.trials import Sweep, check_trials, measure_of, trials_of
from unstable.tracking.lines import RunConsole
from unstable.tracking.text import Text


def begin(path: Path, out: Path | None, *, plan_only: bool = False) -> None:
    """Run the sweep of a file, in `out` or outputs/<its name>.

    With `plan_only` it prints the runs' commands and starts nothing. Raises `ConfigError` for a
    mistake before anything starts, `RunFailedError` once all is over where runs have failed, and
    what an interrupt raises.
    """
    place = f"FILE = {str(path)!r}"
    config = read_sweep(read_text(path, place), place)
    folder = SweepFolder(out or Path("outputs") / (config.name or path.stem))
    refuse_existing(folder, "sweep")
    trials = trials_of(config)
    machine = this_machine()
    with starting():
        chosen = measure_of(config, trials[0].config)._asdict()
        sweep = Sweep(folder, config.model_copy(update=chosen), trials)
        check_trials(sweep)
        at_once = _at_once(sweep, machine)
    sweep = sweep._replace(config=sweep.config.model_copy(update={"at_once": at_once}))
    if plan_only:
        for trial in trials:
            print(trial.command(folder))
        status(f"{sweep.size}, {at_once} at a time, by {sweep.measure.text}")
        return
    folder.make(sweep.config, [trial.record(folder) for trial in trials])
    _run(sweep, machine)


def go_on(root: Path, *, retry: bool = False) -> None:
    """Go on with a sweep, whatever ended it; errors as above. `retry`: runs that failed, too."""
    sweep = _read(root)
    kept = sweep.folder.digests()
    for trial in sweep.trials:
        has_begun = sweep.folder.run(trial.name).root.exists()  # and goes on with its own config
        if not has_begun and kept.get(trial.name) != trial.record(sweep.folder)["digest"]:
            raise ConfigError(
                f"{trial.name}: its config is no longer what it was when the sweep began; put "
                f"{trial.setting.config} back as it was, or begin another sweep"
            )
    _run(sweep, this_machine(), retry=retry)


def show(root: Path, *, as_json: bool = False) -> None:
    """Print a sweep's table, or all of its figures as JSON; starts nothing."""
    sweep = _read(root)
    found = results(outcomes(sweep), sweep.measure)
    if as_json:
        print(json.dumps({"format": FORMAT, **as_record(found, sweep.measure)}))
    else:
        _print(sweep, found)


def _read(root: Path) -> Sweep:
    folder = SweepFolder(root)
    if not folder.file.is_file():
        raise ConfigError(
            f"FOLDER = {str(root)!r} holds no sweep.yaml; give a folder that unstable sweep left"
        )
    config = folder.read()
    return Sweep(folder, config, trials_of(config))


def _at_once(sweep: Sweep, machine: Machine) -> int:
    """Runs at a time; raises `ConfigError` where that many do not fit."""
    configs = dict(chain.from_iterable(each.configs().items() for each in sweep.settings))
    return runs_at_once(sweep.config.at_once, configs, machine, len(sweep.trials))


def _run(sweep: Sweep, machine: Machine, *, retry: bool = False) -> None:
    folder, count = sweep.folder, _at_once(sweep, machine)

    def changed() -> None:
        try:
            _write(sweep)
        except (ConfigError, OSError, ValueError) as error:
            status(f"the page could not be written ({error})")

    def show_all() -> None:
        _print(sweep, _write(sweep))
        print(f"report: {folder.report}")

    def make() -> Runner:
        return Runner(sweep, parts(machine, count), changed)

    size = f"{sweep.size}, {count} at a time"
    carry_out(make, folder, "sweep", size=size, show=show_all, retry=retry)


def _write(sweep: Sweep) -> list[Result]:
    """Write the page; returns what is in it."""
    folder, found = sweep.folder, results(outcomes(sweep), sweep.measure)
    fields = {each.setting.name: each.given for each in sweep.settings}
    rungs = [
        [f"{each.rung}", name, fixed(value, 3), "goes on" if name in each.kept else "stopped"]
        for each in folder.decisions()
        for name, value in each.values.items()
    ]
    name = sweep.config.name or folder.root.name
    page = sweep_page(name, found, sweep.measure, fields, rungs)
    write_page(folder.report, page, [], plot_library(cache_folder()))
    return found


def _print(sweep: Sweep, found: Sequence[Result]) -> None:
    table = Table(box=None, pad_edge=False, title=sweep.measure.text)
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for result in found:
        table.add_row(*map(Text, cells(result)))
    console = RunConsole()
    console.print(table)
    for run in (each for result in found for each in result.runs if each.line):
        console.print(Text(f"{run.state}: {run.name}: {run.line}"))
