"""The commands: one table, and a function for each that calls what carries it out."""

from collections.abc import Callable
from functools import partial
from typing import Any

from unstable.cli.options import (
    EXIT_FAILED,
    EXIT_USER_ERROR,
    Reader,
    any_value,
    choice_of,
    folder_at,
    loaded,
    loaded_run,
    number_of,
    run_and_version,
    scalar_of,
    some_versions_of,
    text_of,
    threads_of,
    version_of,
    versions_of,
    whole_number_of,
)
from unstable.cli.table import SHELLS, TEXTS, Command, Given, completion
from unstable.config import (
    ConfigError,
    LearnRun,
    RunConfig,
    SFTRun,
    WorldRun,
    dump,
    shown,
)


def _train(given: Given) -> None:
    resumed, forked = given["resume"], given["fork"]
    if resumed is None and forked is None:
        config = loaded_run(RunConfig, given["config"], given.fields)
        from unstable.commands.train import train

        train(config, given.typed)
        return
    if given["config"] is not None or (resumed and forked):
        raise ConfigError("--resume, --fork and --config: give one of them")
    from unstable.commands.resume import fork, resume

    if resumed is not None:
        resume(folder_at("--resume", resumed), given.fields)
    else:
        run_dir, version = run_and_version("--fork", forked)
        with_state = given["fork_state"] is not False
        fork(run_dir, version, given.fields, with_state=with_state, command=given.typed)


def _sft(given: Given) -> None:
    if given["resume"] is None:
        config = loaded(SFTRun, given["config"], given.fields)
        from unstable.commands.sft import sft

        sft(config, given.typed)
        return
    for name in given.fields if given["config"] is None else ["config"]:
        raise ConfigError(f"--resume goes on with a run as it was begun; leave out --{name}")
    from unstable.commands.sft import resume

    resume(folder_at("--resume", given["resume"]))


def _learn(given: Given) -> None:
    from unstable.commands.learn import learn
    from unstable.commands.resume import resume

    pairs = "learn.pairs" in given.fields
    if given["resume"] is None and given.words and given["config"] is None:
        learn([folder_at("RUN", word) for word in given.words], given.fields, given.typed)
    elif given["resume"] is None and pairs and not given.words:
        base = loaded_run(LearnRun, given["config"], given.fields)
        learn([], given.fields, given.typed, base)
    elif given["resume"] is None or given.words:
        raise ConfigError(
            "give one or more RUN, or --learn.pairs FILE with a --config, or --resume RUN_DIR"
        )
    else:
        resume(folder_at("--resume", given["resume"]), given.fields)


def _world(given: Given) -> None:
    config = loaded(WorldRun, given["config"], given.fields)
    from unstable.commands.world import make_world

    make_world(config)


def _config(given: Given) -> None:
    config = loaded_run(RunConfig, given["config"], given.fields)
    from unstable.commands.prepare import prepare

    print(dump(prepare(config).config), end="")


def _doctor(given: Given) -> int:
    if not given.words:
        config = loaded_run(RunConfig, given["config"], given.fields)
        from unstable.commands.doctor import doctor

        return doctor(config)
    own = [] if given["config"] is None else ["config"]
    for name in [*own, *given.fields]:
        raise ConfigError(f"'--{name}': doctor RUN_DIR takes nothing else; leave it out")
    from unstable.commands.diagnosis import diagnose

    return diagnose(folder_at("RUN_DIR", given.words[0]))


def _evaluate(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0])
    option = given["version"]
    if None not in (version, option):
        problem = f"{given.words[0]} names a version; give one of the two"
        raise ConfigError(f"--version = {option}: {problem}")
    from unstable.commands.evaluate import evaluate

    evaluate(folder, option if version is None else version, given.fields)


def _exploit(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0])
    from unstable.commands.exploit import learn, measure, measure_table

    own = {name: value for name, value in given.own.items() if value is not None}
    files = {name: folder_at(f"--{name}", own.pop(name)) for name in _FILES if name in own}
    average, past = own.pop("average", None), "--past" in given.flags
    if "--learn" in given.flags:
        for option in (*files, "average", "nodes", *(["past"] if past else [])):
            if option in (*files, "past") or given[option] is not None:
                raise ConfigError(f"--{option}: --learn solves nothing exactly; leave it out")
        learn(folder, version, own | given.fields, given.typed)
        return
    games = own.pop("games", [])
    named = [games] if isinstance(games, str) else games
    options = {f"eval.exploitability.{name}": value for name, value in own.items()} | given.fields
    if average is not None and version is not None:
        raise ConfigError(f"--average: {given.words[0]} names a version; give one of the two")
    if (policy := files.pop("policy", None)) is not None:
        if files or past or average is not None or version is not None:
            raise ConfigError("--policy takes the place of the run's versions; leave them out")
        measure_table(folder, policy, named, options)
        return
    if past and average is not None:
        raise ConfigError("--past: an average has no versions before it; leave one of the two out")
    measure(folder, version, named, options, average=average, past=past, **files)


_FILES = ("table", "policy")


def _play(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0]) if given.words else (None, None)
    from unstable.commands.play.play import Choices, play

    choices = Choices(**{name: given[name] for name in ("game", "seat", "opponent", "temperature")})
    play(folder, version, given["config"], choices, given.fields, command=given.typed)


def _replay(given: Given) -> int:
    folder, number = folder_at("RUN_DIR", given.words[0]), scalar_of(given.words[1])
    if type(number) is not int:
        raise ConfigError(f"GAME = {shown(given.words[1])}: give a game's number, such as 12")
    change = ("with", "seat", "opponent", "temperature")
    others = [*(name for name in change if given[name] is not None), *given.fields]
    if given["from"] is None and others:
        raise ConfigError(f"--{others[0]}: only with --from TURN, which plays the game on")
    from unstable.commands.audit.replay import Change, audit, explore
    from unstable.commands.play.found import find

    found = find(folder, number, given["purpose"], given["version"])
    if given["from"] is None:
        return 0 if audit(found) else EXIT_FAILED
    choices = {name: given[name] for name in change[1:]}
    changed = Change(turn=given["from"], player=given["with"] or "me", **choices)
    explore(found, changed, given.fields, given.typed)
    return 0


def _serve(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0]) if given.words else (None, None)
    own = {name: value for name, value in given.own.items() if value is not None}
    config, versions = own.pop("config", None), own.pop("versions")
    if versions and version is not None:
        raise ConfigError(f"--versions: {given.words[0]} names one; give one of the two")
    if folder is None and versions:
        raise ConfigError("--versions: give the RUN_DIR whose versions they are")
    if folder is not None and config is not None:
        raise ConfigError("RUN_DIR and --config: give one of them; a run has a config of its own")
    from unstable.commands.serve import Options, serve

    serve(folder, versions or [version], config, Options(**own), given.fields)


def _judge(given: Given) -> None:
    folder = folder_at("RUN_DIR", given.words[0])
    from unstable.commands.judge import judge

    judge(folder, given["terms"], given["into"], given.fields)


def _report(given: Given) -> None:
    folders = [folder_at("RUN_DIR", word) for word in given.words]
    from unstable.commands.report import report

    report(folders, given["out"])


def _sweep(given: Given) -> None:
    from unstable.studies.sweep.sweep import begin, go_on, show

    _of_file(given, "sweep", begin, go_on, show)


def _league(given: Given) -> None:
    from unstable.studies.league.league import begin, go_on, show

    _of_file(given, "league", partial(begin, seed=given["seed"]), go_on, show)


def _of_file(
    given: Given,
    thing: str,
    begin: Callable[..., None],
    go_on: Callable[..., None],
    show: Callable[..., None],
) -> None:
    """Begin many runs by a file, go on with them, or show what they have come to."""
    resumed, flags = given["resume"], given.flags
    own = [f"--{name}" for name, value in given.own.items() if value is not None]
    if resumed is not None:
        for other in (*given.words, *own, *sorted(flags)):
            if other not in ("--resume", "--retry"):
                raise ConfigError(f"{other!r}: --resume goes on with a {thing} as it was begun")
        go_on(folder_at("--resume", resumed), retry="--retry" in flags)
    elif not given.words or "--retry" in flags:
        raise ConfigError(f"give a {thing}'s file, or --resume FOLDER and, if you like, --retry")
    elif flags & {"--table", "--json"}:
        show(folder_at("FOLDER", given.words[0]), as_json="--json" in flags)
    else:
        begin(folder_at("FILE", given.words[0]), given["out"], plan_only="--plan" in flags)


def _ratings(given: Given) -> None:
    folders = [folder_at("RUN_DIR", word) for word in given.words]
    from unstable.studies.ratings import ratings

    weight = 1.0 if given["forfeits"] is None else given["forfeits"]
    ratings(folders, weight, as_json="--json" in given.flags)


def _tournament(given: Given) -> None:
    from unstable.studies.tournament.tournament import Options, resume, tournament

    if given["resume"] is not None:
        others = {name for name, value in given.own.items() if value is not None} - {"resume"}
        for option in [*given.words, *given.flags, *others, *given.fields]:
            raise ConfigError(f"{option!r}: --resume goes on with a tournament as it was begun")
        resume(folder_at("--resume", given["resume"]))
        return
    own = {name: value for name, value in given.own.items() if name != "resume"}
    games = own.pop("game")
    if games == []:
        raise ConfigError("--game = []: names none; give one, or leave it out")
    named = games if isinstance(games, list) else [] if games is None else [games]
    options = Options(**own, game=list(map(str, named)), jpc="--jpc" in given.flags)
    tournament(given.words, options, given.fields, given.typed)


def _export(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0])
    from unstable.commands.export import export

    merged = "--merged" in given.flags
    export(folder, version, given["out"], merged=merged, repository=given["push"])


def _watch(given: Given) -> None:
    from unstable.commands.watch import watch

    watch(folder_at("RUN_DIR", given.words[0]), once="--once" in given.flags)


def _runs(given: Given) -> None:
    from unstable.commands.runs import runs

    runs(folder_at("FOLDER", given.words[0] if given.words else "outputs"), given["tag"])


def _model(given: Given) -> None:
    from unstable.commands.prepare import base_folder

    print(base_folder(given.words[0]))


def _games(given: Given) -> None:
    from unstable.commands.games import list_games

    list_games()


def _completion(given: Given) -> int:
    if given.words[0] not in SHELLS:
        print(COMMANDS["completion"].usage("completion"))
        return EXIT_USER_ERROR
    print(completion(given.words[0], COMMANDS), end="")
    return 0


def _folder_of(option: str, value: Any) -> Any:
    text = text_of(option, value)
    return None if text is None else folder_at(option, text)


CONFIG: dict[str, Reader] = {"config": text_of}
SITTING: dict[str, Reader] = {
    **{"seat": whole_number_of, "opponent": text_of, "temperature": number_of}
}
_CONFIGURED: dict[str, Any] = {"own": CONFIG, "takes_fields": True}
MOST = 10_000
COMMANDS = {
    "train": Command(
        _train,
        *TEXTS["train"],
        own={**CONFIG, "resume": text_of, "fork": text_of, "fork_state": choice_of},
        takes_fields=True,
    ),
    "sft": Command(_sft, *TEXTS["sft"], own={**CONFIG, "resume": text_of}, takes_fields=True),
    "learn": Command(
        _learn,
        *TEXTS["learn"],
        words=(0, MOST),
        own={**CONFIG, "resume": text_of},
        takes_fields=True,
        short={"--algorithm": "learner.algorithm.name"},
    ),
    "world": Command(_world, *TEXTS["world"], **_CONFIGURED),
    "eval": Command(
        _evaluate,
        *TEXTS["eval"],
        words=(1, 1),
        own={"version": version_of},
        takes_fields=True,
        short={"--games": "eval.games", "--opponents": "eval.opponents"},
    ),
    "exploit": Command(
        _exploit,
        *TEXTS["exploit"],
        words=(1, 1),
        own={
            **{"games": any_value, "samples": any_value, "nodes": any_value},
            **{"table": text_of, "policy": text_of, "average": versions_of},
        },
        flags=("--learn", "--past"),
        takes_fields=True,
    ),
    "play": Command(
        _play,
        *TEXTS["play"],
        words=(0, 1),
        own={**CONFIG, "game": text_of, **SITTING},
        takes_fields=True,
    ),
    "replay": Command(
        _replay,
        *TEXTS["replay"],
        words=(2, 2),
        own={
            **{"purpose": text_of, "version": version_of, "from": whole_number_of},
            **{"with": text_of, **SITTING},
        },
        takes_fields=True,
    ),
    "serve": Command(
        _serve,
        *TEXTS["serve"],
        words=(0, 1),
        own={
            **{**CONFIG, "versions": some_versions_of, "host": text_of, "port": whole_number_of},
            **{"token_env": text_of, "top_logprobs": whole_number_of, "threads": threads_of},
        },
        takes_fields=True,
    ),
    "judge": Command(
        _judge,
        *TEXTS["judge"],
        words=(1, 1),
        own={"terms": _folder_of, "into": text_of},
        takes_fields=True,
    ),
    "report": Command(_report, *TEXTS["report"], words=(1, MOST), own={"out": _folder_of}),
    "sweep": Command(
        _sweep,
        *TEXTS["sweep"],
        words=(0, 1),
        own={"out": _folder_of, "resume": text_of},
        flags=("--plan", "--retry", "--table", "--json"),
    ),
    "league": Command(
        _league,
        *TEXTS["league"],
        words=(0, 1),
        own={"out": _folder_of, "seed": whole_number_of, "resume": text_of},
        flags=("--plan", "--retry", "--table", "--json"),
    ),
    "ratings": Command(
        _ratings,
        *TEXTS["ratings"],
        words=(1, MOST),
        own={"forfeits": number_of},
        flags=("--json",),
    ),
    "tournament": Command(
        _tournament,
        *TEXTS["tournament"],
        words=(0, MOST),
        own={
            **{**CONFIG, "game": any_value, "deals": whole_number_of, "games": whole_number_of},
            **{"temperature": number_of, "forfeits": number_of, "resume": text_of},
        },
        flags=("--jpc",),
        takes_fields=True,
    ),
    "watch": Command(_watch, *TEXTS["watch"], words=(1, 1), flags=("--once",)),
    "runs": Command(_runs, *TEXTS["runs"], words=(0, 1), own={"tag": text_of}),
    "export": Command(
        _export,
        *TEXTS["export"],
        words=(1, 1),
        own={"out": _folder_of, "push": text_of},
        flags=("--merged",),
    ),
    "config": Command(_config, *TEXTS["config"], **_CONFIGURED),
    "doctor": Command(
        _doctor,
        *TEXTS["doctor"],
        words=(0, 1),
        own=CONFIG,
        takes_fields=True,
    ),
    "model": Command(_model, *TEXTS["model"], words=(1, 1)),
    "games": Command(_games, *TEXTS["games"]),
    "completion": Command(_completion, *TEXTS["completion"], words=(1, 1)),
}
