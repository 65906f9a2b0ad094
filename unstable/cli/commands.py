"""Declarations of the commands; each command imports its implementation when it is called."""

from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Exit, Option, Typer

from unstable.cli import parameters as p
from unstable.cli.options import HELP, ConfigCommand, loaded, loaded_run, refuse_others
from unstable.config import DISTRIBUTION, ConfigError, LearnRun, RunConfig, SFTRun, WorldRun, dump

app = Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP, "max_content_width": 100},
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"unstable {metadata.version(DISTRIBUTION)}")
        raise Exit


_VERSION = Option("--version", "-V", is_eager=True, callback=_show_version, help="print release")


@app.callback()
def unstable(version: Annotated[bool, _VERSION] = False) -> None:
    """Train language-model agents through self-play on text games."""


@app.command(cls=ConfigCommand)
def train(
    context: Context,
    config: p.Config = None,
    resume: p.Resume = None,
    fork: p.Fork = None,
    fork_state: p.ForkState = None,
) -> None:
    """Train a model by self-play.

    The default config is first_run (SmolLM2 on TicTacToe, 12 updates, evaluated before and after),
    or default if an option names a game, a model or an algorithm.
    """
    fields, typed = context.obj
    if resume is not None:
        refuse_others(context, "--resume uses the run's own config", "resume", "fields")
        from unstable.commands.resume import resume as go_on

        go_on(resume, fields)
    elif fork is not None:
        refuse_others(context, "--fork uses the run's own config", "fork", "fork_state", "fields")
        from unstable.commands.resume import fork as begin

        begin(*fork, fields, with_state=fork_state != "false", command=typed)
    elif fork_state is not None:
        raise ConfigError("--fork_state: applies only to --fork; leave it out")
    else:
        run_config = loaded_run(RunConfig, config, fields)
        from unstable.commands.train import train

        train(run_config, typed)


@app.command(cls=ConfigCommand)
def sft(context: Context, config: p.Config = None, resume: p.Resume = None) -> None:
    """Train a model on examples, as a start for self-play. See docs/sft.md."""
    if resume is not None:
        refuse_others(context, "--resume uses the run's own settings", "resume")
        from unstable.commands.sft import resume as go_on

        go_on(resume)
    else:
        run_config = loaded(SFTRun, config, context.obj.fields)
        from unstable.commands.sft import sft

        sft(run_config, context.obj.typed)


@app.command(cls=ConfigCommand)
def learn(
    context: Context, runs: p.RunDirsOrNone = None, config: p.Config = None, resume: p.Resume = None
) -> None:
    """Train on the recorded games of runs, with the first one's config. See docs/offline.md.

    --learn.pairs FILE adds pairs of answers, or replaces the runs if --config is given instead.
    """
    fields, typed = context.obj
    from unstable.commands.learn import learn
    from unstable.commands.resume import resume as go_on

    if resume is not None:
        refuse_others(context, "--resume uses the run's own config and games", "resume", "fields")
        go_on(resume, fields)
    elif runs and config is None:
        learn(runs, fields, typed)
    elif "learn.pairs" in fields and not runs:
        learn([], fields, typed, loaded_run(LearnRun, config, fields))
    else:
        raise ConfigError(
            "give one or more RUN_DIR, or --learn.pairs FILE and --config, or --resume RUN_DIR"
        )


@app.command(cls=ConfigCommand)
def world(context: Context, config: p.Config = None) -> None:
    """Make a tiny base model for the games of a config. See docs/small_worlds.md."""
    run_config = loaded(WorldRun, config, context.obj.fields)
    from unstable.commands.world import make_world

    make_world(run_config)


@app.command("eval", cls=ConfigCommand)
def evaluate(
    context: Context,
    run: p.Run,
    version: p.Version = None,
    baseline: p.Baseline = None,
    relabel: p.Relabel = None,
) -> None:
    """Evaluate a finished version of a run against fixed opponents."""
    if None not in (run.version, version):
        raise ConfigError(f"--version = {version}: conflicts with RUN_DIR@VERSION; remove one")
    if None not in (baseline, relabel):
        raise ConfigError("--relabel: conflicts with --baseline; remove one of them")
    from unstable.commands.evaluate import evaluate

    number = version if run.version is None else run.version
    evaluate(run.folder, number, context.obj.fields, baseline, relabel)


@app.command(cls=ConfigCommand)
def exploit(
    context: Context,
    run: p.Run,
    games: p.Games = None,
    past: Annotated[bool, Option("--past", help="also worst case against past versions")] = False,
    average: p.Average = None,
    relabel: p.Relabel = None,
    table: Annotated[Path | None, Option(parser=p.folder, help="write policy: .csv, .json")] = None,
    policy: Annotated[Path | None, Option(parser=p.folder, help="policy table to measure")] = None,
    best: Annotated[bool, Option("--learn", help="train a best response, in any game")] = False,
) -> None:
    """Compute how far a version is from an equilibrium. See docs/exploitability.md."""
    fields, typed = context.obj
    from unstable.commands.exploit import learn, measure, measure_table

    if best:
        why = "--learn does not solve games exactly"
        refuse_others(context, why, "run", "best", "fields")
        if "eval.exploitability.nodes" in fields:
            raise ConfigError(f"--nodes: {why}; leave it out")
        learn(*run, fields, typed)
        return
    if average is not None and run.version is not None:
        raise ConfigError("--average: conflicts with RUN_DIR@VERSION; remove one")
    if policy is not None:
        why = "--policy replaces the run's versions"
        refuse_others(context, why, "run", "policy", "games", "fields")
        if run.version is not None:
            raise ConfigError(f"@{run.version}: {why}; leave it out")
        measure_table(run.folder, policy, games or [], fields)
    elif past and average is not None:
        raise ConfigError("--past: conflicts with --average; remove one of them")
    else:
        options: dict[str, Any] = {"average": average, "past": past, "relabel": relabel}
        measure(*run, games or [], fields, table=table, **options)


@app.command(cls=ConfigCommand)
def play(
    context: Context,
    run: p.RunOrNone = None,
    config: p.Config = None,
    game: Annotated[str | None, Option(help="any game; default: the config's first")] = None,
    seat: p.Seat = None,
    opponent: p.Opponent = None,
    temperature: p.Temperature = None,
) -> None:
    """Play a game against a model at the terminal. See docs/play.md."""
    from unstable.commands.play.play import PlayOptions, play

    choices = PlayOptions(game, seat, opponent, temperature)
    where, version = run or (None, None)
    play(where, version, config, choices, context.obj.fields, command=context.obj.typed)


@app.command(cls=ConfigCommand)
def replay(
    context: Context,
    run: p.RunDir,
    game: Annotated[int, Argument(metavar="GAME", min=0, help="game number, as in the viewer")],
    purpose: Annotated[str | None, Option(help="train or eval")] = None,
    version: p.Version = None,
    turn: Annotated[int | None, Option("--from", min=0, help="turn to continue from, 1..N")] = None,
    player: Annotated[str | None, Option("--with", help=f"new player: me, {p.PLAYERS}")] = None,
    seat: p.Seat = None,
    opponent: p.Opponent = None,
    temperature: p.Temperature = None,
) -> int:
    """Replay a recorded game; exit code 1 if the replay differs. See docs/play.md."""
    from unstable.commands.audit.replay import Change, audit, explore
    from unstable.commands.play.found import find

    if turn is None:
        why = "requires --from TURN, which continues the game"
        refuse_others(context, why, "run", "game", "purpose", "version")
        return 0 if audit(find(run, game, purpose, version)) else 1
    change = Change(turn, player or "me", seat, opponent, temperature)
    explore(find(run, game, purpose, version), change, *context.obj)
    return 0


@app.command(cls=ConfigCommand)
def serve(
    context: Context,
    run: p.RunOrNone = None,
    config: p.Config = None,
    versions: p.Versions = None,
    host: Annotated[str, Option(help="address; beyond loopback it needs a token")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, help="port; 0: any free port")] = 8000,
    token_env: Annotated[str | None, Option("--token_env", help="variable with the token")] = None,
    top_logprobs: Annotated[int, Option("--top_logprobs", min=0, help="limit per request")] = 5,
    threads: Annotated[int, Option(min=1, max=1024, help="threads of embedded engine")] = 1,
    openenv: Annotated[bool, Option("--openenv", help="serve games to OpenEnv clients")] = False,
    against: p.Against = None,
) -> None:
    """Serve versions with OpenAI's API, or to OpenEnv clients: docs/serve.md, openenv.md."""
    where, version = run or (None, None)
    if versions and version is not None:
        raise ConfigError("--versions: conflicts with RUN_DIR@VERSION; remove one")
    if where is None and versions:
        raise ConfigError("--versions: RUN_DIR is missing; give the run of these versions")
    if where is not None and config is not None:
        raise ConfigError("--config: conflicts with RUN_DIR and its config; remove one of them")
    if against and not openenv:
        raise ConfigError("--against: names opponents of games; add --openenv")
    from unstable.commands.serve import ServeOptions, serve

    options = ServeOptions(host, port, token_env, top_logprobs, threads)
    if openenv and options != ServeOptions(host, port, token_env):
        raise ConfigError("--top_logprobs, --threads: no options of --openenv; leave them out")
    if not openenv:
        serve(where, versions or [version], config, options, context.obj.fields)
        return
    from unstable.studies.openenv.serving import serve_games

    serve_games(where, versions or [version], config, against or [], options, *context.obj)


@app.command(cls=ConfigCommand)
def judge(
    context: Context,
    run: p.RunDir,
    terms: Annotated[Path | None, Option(parser=p.folder, help="YAML: rewards, judges")] = None,
    into: Annotated[str | None, Option(help="name of the output judged/NAME.jsonl")] = None,
) -> None:
    """Score recorded games with reward terms, without playing. See docs/feedback.md."""
    from unstable.commands.judge import judge

    judge(run, terms, into, context.obj.fields)


@app.command()
def report(runs: p.RunDirs, out: p.Out = None) -> None:
    """Write an HTML report about runs and their games. See docs/report.md."""
    from unstable.commands.report import report

    report(runs, out)


@app.command()
def watch(
    run: p.RunDir, once: Annotated[bool, Option("--once", help="print once and exit")] = False
) -> None:
    """Show the dashboard of a running or finished run."""
    from unstable.commands.watch import watch

    watch(run, once=once)


@app.command()
def runs(
    root: Annotated[Path | None, Argument(metavar="FOLDER", parser=p.folder)] = None,
    tag: Annotated[str | None, Option(help="list only runs with this tag")] = None,
) -> None:
    """List the runs of a folder (default: outputs) with state and score."""
    from unstable.commands.runs import runs

    runs(root or Path("outputs"), tag)


@app.command()
def export(
    run: p.Run,
    out: p.Out = None,
    merged: Annotated[bool, Option("--merged", help="merged weights, no adapter")] = False,
    push: Annotated[str | None, Option(help="hub repository OWNER/NAME to upload to")] = None,
) -> None:
    """Write a version as a folder that other libraries load. See docs/export.md."""
    from unstable.commands.export import export

    export(*run, out, merged=merged, repository=push)


@app.command("config", cls=ConfigCommand)
def show_config(context: Context, config: p.Config = None) -> None:
    """Print the resolved config."""
    run_config = loaded_run(RunConfig, config, context.obj.fields)
    from unstable.commands.prepare import prepare

    print(dump(prepare(run_config).config), end="")


@app.command(cls=ConfigCommand)
def doctor(
    context: Context,
    run: Annotated[Path | None, Argument(metavar="RUN_DIR", parser=p.folder)] = None,
    config: p.Config = None,
) -> int:
    """Check whether a config would run, or diagnose a run; exit code 1 if something is wrong."""
    if run is None:
        run_config = loaded_run(RunConfig, config, context.obj.fields)
        from unstable.commands.doctor import doctor

        return doctor(run_config)
    refuse_others(context, "doctor RUN_DIR takes no other options", "run")
    from unstable.commands.diagnosis import diagnose

    return diagnose(run)


@app.command()
def model(name: Annotated[str, Argument(metavar="NAME")]) -> None:
    """Print the folder of a base model."""
    from unstable.commands.prepare import base_folder

    print(base_folder(name))


@app.command()
def games() -> None:
    """List the vetted games."""
    from unstable.commands.runs import list_games

    list_games()
