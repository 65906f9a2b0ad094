"""`unstable league`: from a file to the runs of a league's members, and from them to a table."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from unstable.commands.prepare import check, prepare, show_plan
from unstable.commands.session import starting, status
from unstable.config import FORMAT, ConfigError, RunConfig, read_text
from unstable.planning.machine import Machine, this_machine
from unstable.records.text import command_line
from unstable.studies.league.config import LeagueConfig, read_league
from unstable.studies.league.folder import LeagueFolder
from unstable.studies.league.members import League, league_of
from unstable.studies.league.population import Turn, turns
from unstable.studies.league.runner import Runner
from unstable.studies.league.summary import TurnSummary, as_records, cells, columns, summaries
from unstable.studies.several import carry_out, digest, parts, refuse_existing, runs_at_once
from unstable.tracking.lines import RunConsole
from unstable.tracking.text import Text


def begin(path: Path, out: Path | None, *, seed: int | None, plan_only: bool) -> None:
    """Run the league of a file, in `out` or outputs/<its name>; `seed` in place of the file's.

    With `plan_only` it prints the runs' commands and starts nothing. Raises `ConfigError` for a
    mistake before anything starts, `RunFailedError` where runs have failed, and what an interrupt
    raises.
    """
    place = f"FILE = {str(path)!r}"
    config = read_league(read_text(path, place), place)
    if seed is not None:
        config = config.model_copy(update={"seed": seed})
    folder = LeagueFolder(out or Path("outputs") / (config.name or path.stem))
    refuse_existing(folder, "league")
    league, machine = _made(folder, config), this_machine()
    with starting():
        check_league(league)
        at_once = _at_once(league, machine)
    league = league._replace(config=config.model_copy(update={"at_once": at_once}))
    if plan_only:
        _show_plan(league)
        return
    folder.make(league.config, digests(league))
    _run(league, machine)


def go_on(root: Path, *, retry: bool = False) -> None:
    """Go on with a league, whatever ended it; errors as above. `retry`: runs that failed, too."""
    league = _read(root)
    kept = league.folder.digests()
    for row in digests(league):
        if kept.get(row["member"]) != row["digest"]:
            raise ConfigError(
                f"{row['member']}: its config is no longer what it was when the league began; put "
                f"{league.config.config} back as it was, or begin another league"
            )
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


def _made(folder: LeagueFolder, config: LeagueConfig) -> League:
    return league_of(folder, config, turns(config))


def _read(root: Path) -> League:
    folder = LeagueFolder(root)
    if not folder.file.is_file():
        raise ConfigError(
            f"FOLDER = {str(root)!r} holds no league.yaml; give a folder that unstable league left"
        )
    return _made(folder, folder.read())


def digests(league: League) -> list[dict[str, str]]:
    """Of the config that each member's runs have in common, as lines of the league's folder."""
    return [{"member": name, "digest": digest(base)} for name, base in league.bases.items()]


def check_league(league: League) -> None:
    """Raise `ConfigError` for what would fail later in a member's runs."""
    for name, base in league.bases.items():
        try:
            check(base)
            if base.learner.state is not None:
                raise ConfigError("learner.state: a member goes on from its own last generation")
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    first, *others = league.bases
    for name in others:
        models = [league.bases[each].model.name for each in (first, name)]
        if models[0] != models[1]:
            raise ConfigError(
                f"{name}: model.name = {models[1]!r}, and {first} has {models[0]!r}; give all "
                "members one base, which an engine serves to all who meet"
            )


def largest(league: League) -> dict[str, RunConfig]:
    """By member, a config with as many adapters as its last run has.

    Frozen versions count as past ones, since their adapters are not there yet.
    """
    found = {}
    for name, base in league.bases.items():
        count = len(league.met(Turn(name, league.config.generations)))
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
    """Runs at a time; raises `ConfigError` where that many do not fit."""
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
        f"{league.size}, {league.config.at_once} at a time; weights follow from games as they are "
        "played, and whether who restarts once it has won does"
    )


def _run(league: League, machine: Machine, *, retry: bool = False) -> None:
    count = _at_once(league, machine)

    def make() -> Runner:
        return Runner(league, parts(machine, count))

    size = f"{league.size}, {count} at a time"
    carry_out(
        make,
        league.folder,
        "league",
        size=size,
        show=lambda: _print(league, summaries(league)),
        retry=retry,
    )


def _tournament(league: League) -> str | None:
    """The command by which all frozen versions play each other; None before there are two."""
    runs = [league.folder.run(turn.name) for turn in league.turns]
    players = [f"{run.root}@{max(run.versions())}" for run in runs if run.versions()]
    return command_line("unstable", "tournament", *players) if len(players) > 1 else None


def _print(league: League, found: Sequence[TurnSummary]) -> None:
    members = list(league.config.members)
    title = "Scores with 95 % intervals, against each member's newest version at the time"
    shown = Table(box=None, pad_edge=False, title=title)
    for name in columns(found, members):
        shown.add_column(name, overflow="fold")
    for each in found:
        shown.add_row(*map(Text, cells(each, found, members)))
    console = RunConsole()
    console.print(shown)
    for each in (each for each in found if each.line):
        console.print(Text(f"failed: {each.turn.name}: {each.line}"))
    if (command := _tournament(league)) is not None:
        print(f"all against all: {command}")
