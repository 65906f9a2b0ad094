"""`unstable league`: runs the members of a league's file and prints a table of their results."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from unstable.commands.prepare import check, prepare, show_plan
from unstable.commands.session import starting, status
from unstable.config import FORMAT, ConfigError, RunConfig, read_text
from unstable.planning.machine import Machine, this_machine
from unstable.records.text import command_line
from unstable.studies.league.config import read_league
from unstable.studies.league.members import League, LeagueFolder, Runner, league_of
from unstable.studies.league.population import MemberTurn
from unstable.studies.league.summary import TurnSummary, as_records, summaries, summary_table
from unstable.studies.several import carry_out, parts, runs_at_once
from unstable.tracking.lines import print_lines, print_table


def begin(path: Path, out: Path | None, *, seed: int | None, plan_only: bool) -> None:
    """Run the league of a file, in `out` or outputs/<its name>; `seed` replaces the file's.

    With `plan_only` it prints the runs' commands and starts nothing. Raises `ConfigError` for a
    mistake before anything starts, `RunFailedError` if runs have failed, and an interrupt's
    exception.
    """
    place = f"FILE = {str(path)!r}"
    config = read_league(read_text(path, place), place)
    if seed is not None:
        config = config.model_copy(update={"seed": seed})
    folder = LeagueFolder(out or Path("outputs") / (config.name or path.stem))
    folder.check_new()
    league, machine = league_of(folder, config), this_machine()
    with starting():
        check_league(league)
        at_once = _at_once(league, machine)
    league = league._replace(config=config.model_copy(update={"at_once": at_once}))
    if plan_only:
        _show_plan(league)
        return
    folder.make(league.config, league.lines())
    _run(league, machine)


def go_on(root: Path, *, retry: bool = False) -> None:
    """Resume a league; `retry` also reruns failed runs. Raises as `begin` does."""
    league = _read(root)
    league.folder.check_same(league.digests(), dict.fromkeys(league.bases, league.config.config))
    _run(league, this_machine(), retry=retry)


def show(root: Path, *, as_json: bool = False) -> None:
    """Print a league's table, or all of its figures as JSON; starts nothing."""
    league = _read(root)
    found = summaries(league)
    if as_json:
        runs = {"tournament": _tournament(league), "runs": as_records(found)}
        print(json.dumps({"format": FORMAT, **runs}))
    else:
        _print(league, found)


def _read(root: Path) -> League:
    return league_of(LeagueFolder(root), LeagueFolder(root).read())


def check_league(league: League) -> None:
    """Raise `ConfigError` for a mistake that would fail later in a member's runs."""
    for name, base in league.bases.items():
        try:
            check(base)
            if base.learner.state is not None:
                raise ConfigError("learner.state: set by the league for each generation; remove it")
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    first, *others = league.bases
    for name in others:
        models = [league.bases[each].model.name for each in (first, name)]
        if models[0] != models[1]:
            raise ConfigError(
                f"{name}: model.name = {models[1]!r}: {first} has {models[0]!r}; use one base "
                "model for all members, since one engine serves them"
            )


def largest(league: League) -> dict[str, RunConfig]:
    """Return by member a config with as many adapters as its last run has.

    Frozen versions count as past ones, since their adapters do not exist yet.
    """
    found = {}
    for name, base in league.bases.items():
        count = len(league.met(MemberTurn(name, league.config.generations)))
        draw = league.config.members[name].shares
        found[name] = base.updated(
            {
                "opponents.pool_size": base.opponents.pool_size + count,
                "opponents.draw.self": draw.self,
                "opponents.draw.past": draw.past + draw.fixed,
            }
        )
    return found


def _at_once(league: League, machine: Machine) -> int:
    """Return the number of concurrent runs; raises `ConfigError` if that many do not fit."""
    if league.config.turns == "alternate":
        return 1
    most = len(league.config.members)
    return runs_at_once(league.config.at_once, largest(league), machine, most)


def _show_plan(league: League) -> None:
    for turn in league.turns:
        print(league.command(turn))
    for config in largest(league).values():
        show_plan(prepare(config))
    status(
        f"{league.size}, {league.config.at_once} at a time; opponents' weights and restarts "
        "after wins depend on the games played"
    )


def _run(league: League, machine: Machine, *, retry: bool = False) -> None:
    count = _at_once(league, machine)
    carry_out(
        partial(Runner, league, parts(machine, count)),
        league.folder,
        size=f"{league.size}, {count} at a time",
        show=lambda: _print(league, summaries(league)),
        retry=retry,
    )


def _tournament(league: League) -> str | None:
    """Return the command of a tournament of each run's newest version; None for fewer than two."""
    runs = [league.folder.run(turn.name) for turn in league.turns]
    players = [f"{run.root}@{max(run.versions())}" for run in runs if run.versions()]
    return command_line("unstable", "tournament", *players) if len(players) > 1 else None


def _print(league: League, found: Sequence[TurnSummary]) -> None:
    print_table(summary_table(found, list(league.config.members)))
    print_lines(f"failed: {each.turn.name}: {each.line}" for each in found if each.line)
    if (command := _tournament(league)) is not None:
        print(f"tournament: {command}")
