"""The command line: a person's words become a config, and mistakes become one line each."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from unstable.config import (
    ConfigError,
    RunConfig,
    RunFailedError,
    dump,
    fields,
    load,
    nearest,
    one_line,
    outline,
    path_problem,
    read_yaml,
    shown,
    within,
)

EXPLOIT_USAGE = """\
usage: unstable exploit RUN_DIR[@VERSION] [--games NAME ...] [--samples N] [--FIELD VALUE ...]
       unstable exploit RUN_DIR[@VERSION] --learn [--FIELD VALUE ...]

Computes exactly how exploitable a version of a run (the newest, if none is given) is, in those of
the run's games that can be counted out, or in the named ones. RUN_DIR is a folder that unstable
train left. With --learn, for games of any size, a best response to the version is trained, from it
on; what that wins is a lower bound. What it means is in docs/exploitability.md."""

EVAL_USAGE = """\
usage: unstable eval RUN_DIR [--version N] [--games N] [--opponents NAME ...] [--FIELD VALUE ...]

Plays a version of a run (the newest, if none is given) against fixed opponents: random, expert,
rules, base, or those that the run's config names. RUN_DIR is a folder that unstable train left.
--eval.temperature [1.0,0.0] plays all games twice, sampled and greedy;
--eval.votes 5 plays the action that is named most often in five samples a turn."""

USAGE = """\
usage: unstable train  [--config NAME|PATH] [--FIELD VALUE ...]   train a model by self-play
       unstable sft    [--config NAME|PATH] [--FIELD VALUE ...]   train a start on examples first
       unstable sft    --resume RUN_DIR                           go on after an interrupt
       unstable world  [--config NAME|PATH] [--FIELD VALUE ...]   make a tiny base model
       unstable eval   RUN_DIR [--version N] [--games N] ...      play a finished version again
       unstable exploit RUN_DIR[@VERSION] [--games NAME ...]      how far from an equilibrium?
       unstable config [--config NAME|PATH] [--FIELD VALUE ...]   print the resolved config
       unstable doctor [--config NAME|PATH] [--FIELD VALUE ...]   would it run on this machine?
       unstable model  NAME                                       print a base model's folder
       unstable games                                             list the vetted games

Short forms: --model, --num_actors, --num_learners, --steps, --run_dir, --init, --wandb,
--seed.
Every field has its own option, such as --learner.learning_rate 2e-5 or --games.0.env Nim-v0;
unstable train --help learner lists those of a section, --help all lists everything."""

SHORT_FORMS = {
    "--model": "model.name",
    "--num_actors": "actors.num",
    "--num_learners": "learner.num",
    "--steps": "loop.steps",
    "--run_dir": "tracking.run_dir",
    "--init": "model.init",
    "--wandb": "tracking.wandb",
}
HELP = ("-h", "--help")
EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main() -> NoReturn:
    """Entry point of `unstable`.

    Exits with 0, 1 (failed), 2 (user's mistake), 130 (interrupt) or 143 (SIGTERM).
    """
    from unstable.runtime.logs import take_over
    from unstable.runtime.session import Terminated, heeding_sigterm

    sys.path.insert(0, os.getcwd())  # so that module:Class finds a user's own files
    take_over()
    try:
        with heeding_sigterm():
            sys.exit(run(sys.argv[1:]))
    except ConfigError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except RunFailedError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except Terminated:
        sys.exit(EXIT_TERMINATED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line; raises `ConfigError` for a mistake in it."""
    commands = {
        "train": _train,
        "sft": _sft,
        "world": _world,
        "eval": _evaluate,
        "exploit": _exploit,
        "config": _config,
        "doctor": _doctor,
        "model": _model,
        "games": _games,
    }
    if not arguments or arguments[0] in HELP:
        print(USAGE)
        return 0 if arguments else EXIT_USER_ERROR
    name, *rest = arguments
    if name not in commands:
        raise ConfigError(f"command {name!r} is unknown; {nearest(name, list(commands))}")
    return commands[name](rest)


def _train(arguments: Sequence[str]) -> int:
    if any(argument in HELP for argument in arguments):
        return _help("unstable train", arguments)
    config = _configured(arguments)
    from unstable.runtime.train import train

    train(config)
    return 0


def _sft(arguments: Sequence[str]) -> int:
    if any(argument in HELP for argument in arguments):
        return _help("unstable sft", arguments)
    options = parse_options(arguments, SHORT_FORMS)
    run_dir = _text(options, "resume")
    if run_dir is None:
        config = _loaded(options)
        from unstable.runtime.sft import sft

        sft(config, shlex.join(["unstable", "sft", *arguments]))
        return 0
    if options:
        raise ConfigError(
            f"--resume goes on with a run as it was begun; leave out --{[*options][0]}"
        )
    from unstable.runtime.sft import resume

    resume(_folder("--resume", run_dir))
    return 0


def _world(arguments: Sequence[str]) -> int:
    if any(argument in HELP for argument in arguments):
        return _help("unstable world", arguments)
    config = _configured(arguments)
    from unstable.runtime.world import make_world

    make_world(config)
    return 0


def _config(arguments: Sequence[str]) -> int:
    if any(argument in HELP for argument in arguments):
        return _help("unstable config", arguments)
    config = _configured(arguments)
    from unstable.runtime.prepare import prepare

    print(dump(prepare(config).config), end="")
    return 0


def _doctor(arguments: Sequence[str]) -> int:
    if any(argument in HELP for argument in arguments):
        return _help("unstable doctor", arguments)
    config = _configured(arguments)
    from unstable.planning.doctor import examine
    from unstable.planning.machine import this_machine
    from unstable.runtime.prepare import check

    return examine(config, this_machine(), check)


def _model(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(USAGE)
        return 0 if any(argument in HELP for argument in arguments) else EXIT_USER_ERROR
    from unstable.runtime.prepare import base_folder

    print(base_folder(arguments[0]))
    return 0


def _games(arguments: Sequence[str]) -> int:
    if arguments:
        print(USAGE)
        return 0 if any(argument in HELP for argument in arguments) else EXIT_USER_ERROR
    from unstable.runtime.games import vetted_games

    columns, rows = vetted_games()
    blocks = (
        "\n  ".join(
            [game, *(f"{name:8} {cell}" for name, cell in zip(columns[1:], cells, strict=True))]
        )
        for game, *cells in rows
    )
    print("\n\n".join(blocks))
    return 0


def _evaluate(arguments: Sequence[str]) -> int:
    asked = any(argument in HELP for argument in arguments)
    if asked or not arguments or arguments[0].startswith("-"):
        print(EVAL_USAGE)
        return 0 if asked else EXIT_USER_ERROR
    run_dir, *rest = arguments
    folder = _folder("RUN_DIR", run_dir)
    options = parse_options(rest, {"--games": "eval.games", "--opponents": "eval.opponents"})
    version = _version("--version", options.pop("version", None))
    from unstable.runtime.evaluate import evaluate

    evaluate(folder, version, options)
    return 0


def _exploit(arguments: Sequence[str]) -> int:
    asked = any(argument in HELP for argument in arguments)
    if asked or not arguments or arguments[0].startswith("-"):
        print(EXPLOIT_USAGE)
        return 0 if asked else EXIT_USER_ERROR
    run_dir, *rest = arguments
    path, at, number = run_dir.rpartition("@")
    folder = _folder("RUN_DIR", path if at else run_dir)
    version = _version("@VERSION", _scalar(number) if at else None)
    if "--learn" in rest:
        from unstable.runtime.exploit import learn

        rest.remove("--learn")
        learn(folder, version, parse_options(rest, SHORT_FORMS))
        return 0
    short = {f"--{name}": f"eval.exploitability.{name}" for name in ("games", "samples")}
    options = parse_options(rest, short)
    games = options.pop("eval.exploitability.games", [])
    from unstable.runtime.exploit import measure

    measure(folder, version, [games] if isinstance(games, str) else games, options)
    return 0


def _version(option: str, value: Any) -> int | None:
    if value is not None and not (type(value) is int and value >= 0):
        raise ConfigError(f"{option} = {shown(value)}: give a version's number, such as 12")
    return value


def _configured(arguments: Sequence[str]) -> RunConfig:
    return _loaded(parse_options(arguments, SHORT_FORMS))


def _loaded(options: dict[str, Any]) -> RunConfig:
    name = _text(options, "config")
    return load("default" if name is None else name, options)


def _text(options: dict[str, Any], name: str) -> str | None:
    """Take the one word of an option that is no field of the config; None where it is not given."""
    value = options.pop(name, None)
    if isinstance(value, list | dict):
        raise ConfigError(f"--{name} = {shown(value)}: give one, and fields as --FIELD VALUE")
    return None if value is None else str(value)


def _folder(option: str, text: str) -> Path:
    if problem := path_problem(text):
        raise ConfigError(f"{option} = {shown(text)}: {problem}")
    return Path(text).expanduser()


def parse_options(arguments: Sequence[str], short_forms: dict[str, str]) -> dict[str, Any]:
    """Options by dotted path. Several values after one option are a list.

    >>> parse_options(["--steps", "3", "--eval.opponents", "random", "base"], SHORT_FORMS)
    {'loop.steps': 3, 'eval.opponents': ['random', 'base']}
    """
    given: dict[str, list[str]] = {}
    values: list[str] | None = None
    for argument in arguments:
        if argument.startswith("--"):
            option, equals, value = argument.partition("=")
            name = short_forms.get(option, option.removeprefix("--"))
            values = given.setdefault(name.replace("-", "_"), [])
            values.extend([value] if equals else [])
        elif values is None:
            raise ConfigError(f"{argument!r} follows no option; write --field value")
        else:
            values.append(argument)
    for name, texts in given.items():
        if not texts:
            raise ConfigError(f"--{name} has no value; write --{name} VALUE")
    return {name: _value(texts) for name, texts in given.items()}


def _value(texts: list[str]) -> Any:
    values = [_scalar(text) for text in texts]
    return values if len(values) > 1 else values[0]


def _scalar(text: str) -> Any:
    """Lists and mappings as YAML, numbers, true, false and null as JSON, all else as it stands."""
    try:
        if text[:1] in ("[", "{"):
            return read_yaml(text, "")
        return json.loads(text, parse_constant=str)
    except (ConfigError, ValueError, RecursionError):
        return text


def _help(program: str, arguments: Sequence[str]) -> int:
    """Print the sections, or the fields of the one that is asked for, each with its meaning."""
    topics = [argument for argument in arguments if not argument.startswith("-")]
    topic = topics[0] if topics else ""
    if not topic:
        print(f"{USAGE}\n\nSections:\n")
        _print_table([(each.path, each.meaning, "") for each in outline(RunConfig)])
        return 0
    found = [each for each in fields(RunConfig) if topic == "all" or within(each.path, topic)]
    if not found:
        known = [each.path for each in outline(RunConfig)]
        raise ConfigError(f"--help {topic}: no such section; {nearest(topic, known)}, or all")
    print(f"Options of {program} (N counts from 0; one past the end adds an entry):\n")
    _print_table([(f"--{each.path}", each.meaning, each.default) for each in found])
    return 0


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, meaning, default in rows:
        text = Text(meaning).append(default and f" ({default})", style="dim")
        table.add_row(Text(name, style="bold"), text)
    Console(soft_wrap=True).print(table)


def _one_line(error: Exception) -> str:
    """The error in one line, also where it was found in another process."""
    return one_line(str(getattr(error, "cause", error)))
