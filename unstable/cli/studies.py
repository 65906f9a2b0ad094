"""Declarations of the commands of studies, in addition to the commands of single runs."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

from typer import Argument, Context, Option

from unstable.cli import parameters as p
from unstable.cli.commands import app
from unstable.cli.options import ConfigCommand, refuse_others
from unstable.config import ConfigError


@app.command()
def sweep(
    context: Context,
    file: p.File = None,
    out: p.Out = None,
    plan: p.Plan = False,
    resume: p.Resume = None,
    retry: p.Retry = False,
    table: p.Table = False,
    json: p.Json = False,
) -> None:
    """Train for each setting of a file with each seed. See docs/sweep.md."""
    from unstable.studies.sweep.sweep import begin, go_on, show

    _study(context, begin, go_on, show)


@app.command()
def league(
    context: Context,
    file: p.File = None,
    out: p.Out = None,
    seed: p.Seed = None,
    plan: p.Plan = False,
    resume: p.Resume = None,
    retry: p.Retry = False,
    table: p.Table = False,
    json: p.Json = False,
) -> None:
    """Train policies against each other, in generations. See docs/league.md."""
    from unstable.studies.league.league import begin, go_on, show

    _study(context, partial(begin, seed=seed), go_on, show)


def _study(
    context: Context,
    begin: Callable[..., None],
    go_on: Callable[..., None],
    show: Callable[..., None],
) -> None:
    """Start the runs of a study's file, resume them, or show the results."""
    given, name = context.params, context.info_name
    if given["resume"] is not None:
        refuse_others(context, f"--resume uses the {name}'s own settings", "resume", "retry")
        go_on(given["resume"], retry=given["retry"])
    elif given["file"] is None or given["retry"]:
        raise ConfigError(f"give the FILE of a {name}, or --resume FOLDER, optionally --retry")
    elif given["table"] or given["json"]:
        refuse_others(context, "--table and --json only show results", "file", "table", "json")
        show(given["file"], as_json=given["json"])
    else:
        begin(given["file"], given["out"], plan_only=given["plan"])


@app.command()
def ratings(runs: p.RunDirs, forfeits: p.Forfeits = 1.0, json: p.Json = False) -> None:
    """Rate all players of runs by their recorded games. See docs/ratings.md."""
    from unstable.studies.ratings import ratings

    ratings(runs, forfeits, as_json=json)


@app.command(cls=ConfigCommand)
def tournament(
    context: Context,
    players: Annotated[list[str] | None, Argument(metavar="PLAYER", help=p.PLAYERS)] = None,
    config: p.Config = None,
    game: p.Games = None,
    deals: Annotated[int | None, Option(min=1, help="deals per pair and game (16)")] = None,
    games: Annotated[int | None, Option(min=1, help="total games, instead of deals")] = None,
    temperature: p.Temperature = None,
    forfeits: p.Forfeits = 1.0,
    jpc: Annotated[bool, Option("--jpc", help="add joint policy correlation of runs")] = False,
    baseline: Annotated[
        str | None, Option(metavar="PLAYER", help="player whose values reduce the variance")
    ] = None,
    resume: p.Resume = None,
) -> None:
    """Play all players against each other. See docs/ratings.md.

    A PLAYER may also be the folder of an adapter, or module:Class.
    """
    from unstable.studies.tournament.tournament import TournamentOptions, tournament
    from unstable.studies.tournament.tournament import resume as go_on

    if resume is not None:
        refuse_others(context, "--resume uses the tournament's own settings", "resume")
        go_on(resume)
        return
    chosen = config, game or (), deals, games, temperature, forfeits, jpc, baseline
    options = TournamentOptions(*chosen)
    tournament(players or [], options, *context.obj)
