"""`unstable sweep`: runs a sweep's file in a folder, and shows it as a table and a page."""

import json
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from unstable.commands.session import starting, status
from unstable.config import FORMAT, ConfigError, read_text
from unstable.models.hub import cache_folder
from unstable.planning.machine import Machine, this_machine
from unstable.records.tables import Table
from unstable.records.text import fixed
from unstable.report.page import plot_library, write_page
from unstable.studies.several import carry_out, parts, runs_at_once
from unstable.studies.sweep.config import read_sweep
from unstable.studies.sweep.report import COLUMNS, Result, as_record, cells, results, sweep_page
from unstable.studies.sweep.runner import SweepRunner, outcomes
from unstable.studies.sweep.trials import Sweep, SweepFolder, check_trials, measure_of, trials_of
from unstable.tracking.lines import print_lines, print_table


def begin(path: Path, out: Path | None, *, plan_only: bool = False) -> None:
    """Run the sweep of a file, in `out` or outputs/<its name>.

    With `plan_only` it prints the runs' commands and starts nothing. Raises `ConfigError` for a
    mistake before anything starts, `RunFailedError` at the end if runs have failed, and an
    interrupt's exception.
    """
    place = f"FILE = {str(path)!r}"
    config = read_sweep(read_text(path, place), place)
    folder = SweepFolder(out or Path("outputs") / (config.name or path.stem))
    folder.check_new()
    trials, machine = trials_of(config), this_machine()
    with starting():
        chosen = measure_of(config, trials[0].config)._asdict()
        sweep = Sweep(folder, config.model_copy(update=chosen), trials)
        check_trials(sweep)
        at_once = _at_once(sweep, machine)
    sweep = sweep._replace(config=sweep.config.model_copy(update={"at_once": at_once}))
    if plan_only:
        for trial in trials:
            print(trial.command(folder))
        status(f"{sweep.size}, {at_once} at a time, compared by {sweep.measure.text}")
        return
    folder.make(sweep.config, [trial.record(folder) for trial in trials])
    _run(sweep, machine)


def go_on(root: Path, *, retry: bool = False) -> None:
    """Resume a sweep; `retry` also reruns failed runs. Raises as `begin` does."""
    sweep = _read(root)
    # Started runs resume with their own config.
    waiting = [each for each in sweep.trials if not sweep.folder.run(each.name).root.exists()]
    sweep.folder.check_same(
        {each.name: each.digest for each in waiting},
        {each.name: each.setting.config for each in waiting},
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
    config = SweepFolder(root).read()
    return Sweep(SweepFolder(root), config, trials_of(config))


def _at_once(sweep: Sweep, machine: Machine) -> int:
    """Return the number of concurrent runs; raises `ConfigError` if that many do not fit."""
    configs = dict(chain.from_iterable(each.configs().items() for each in sweep.settings))
    return runs_at_once(sweep.config.at_once, configs, machine, len(sweep.trials))


def _run(sweep: Sweep, machine: Machine, *, retry: bool = False) -> None:
    folder, count = sweep.folder, _at_once(sweep, machine)

    def changed() -> None:
        try:
            _write(sweep)
        except (ConfigError, OSError, ValueError) as error:
            status(f"report page not written: {error}")

    def show_all() -> None:
        _print(sweep, _write(sweep))
        print(f"report: {folder.report}")

    make = partial(SweepRunner, sweep, parts(machine, count), changed)
    carry_out(make, folder, size=f"{sweep.size}, {count} at a time", show=show_all, retry=retry)


def _write(sweep: Sweep) -> list[Result]:
    """Write the page; return its results."""
    folder, found = sweep.folder, results(outcomes(sweep), sweep.measure)
    fields = {each.setting.name: each.given for each in sweep.settings}
    rungs = [
        [f"{each.rung}", name, fixed(value, 3), "continued" if name in each.kept else "stopped"]
        for each in folder.decisions()
        for name, value in each.values.items()
    ]
    name = sweep.config.name or folder.root.name
    page = sweep_page(name, found, sweep.measure, fields, rungs)
    write_page(folder.report, page, [], plot_library(cache_folder()))
    return found


def _print(sweep: Sweep, found: Sequence[Result]) -> None:
    print_table(Table(sweep.measure.text, COLUMNS, [cells(result) for result in found]))
    runs = (run for result in found for run in result.runs if run.line)
    print_lines(f"{run.state}: {run.name}: {run.line}" for run in runs)
