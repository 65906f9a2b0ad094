"""From a command line to an exit code."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from unstable.cli.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_USER_ERROR,
    HELP,
    SHORT_FORMS,
)
from unstable.cli.playing import games_command, model_command, play_command, replay_command
from unstable.cli.running import (
    doctor_command,
    evaluate_command,
    exploit_command,
    export_command,
    report_command,
    runs_command,
    watch_command,
)
from unstable.cli.training import config_command, sft_command, train_command, world_command
from unstable.cli.usage import COMPLETION_USAGE, USAGE
from unstable.config import ConfigError, RunFailedError, nearest, one_line


def main() -> NoReturn:
    """Entry point of `unstable`.

    Exits with 0, 1 (failed), 2 (user's mistake), 130 (interrupt) or 143 (SIGTERM).
    """
    from unstable.commands.session import Terminated, as_program

    # So that module:Class finds a user's own files, which take no package's place.
    sys.path.append(os.getcwd())
    try:
        with as_program():
            sys.exit(run(sys.argv[1:]))
    except ConfigError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except RunFailedError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except BrokenPipeError:  # as by `| head`: nobody reads any more, which is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Terminated:
        sys.exit(EXIT_TERMINATED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line; raises `ConfigError` for a mistake in it."""
    if not arguments or arguments[0] in HELP:
        print(USAGE)
        return 0 if arguments else EXIT_USER_ERROR
    name, *rest = arguments
    if name not in COMMANDS:
        raise ConfigError(f"command {name!r} is unknown; {nearest(name, list(COMMANDS))}")
    return COMMANDS[name](rest)


def completion_command(arguments: Sequence[str]) -> int:
    """`unstable completion`; returns its exit code."""
    from unstable.cli.completion import SHELLS, completion

    if len(arguments) != 1 or arguments[0] not in SHELLS:
        print(COMPLETION_USAGE)
        return 0 if any(argument in HELP for argument in arguments) else EXIT_USER_ERROR
    print(completion(arguments[0], [*COMMANDS], [*SHORT_FORMS]), end="")
    return 0


def _one_line(error: Exception) -> str:
    """The error in one line, also where it was found in another process."""
    return one_line(str(getattr(error, "cause", error)))


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train_command,
    "sft": sft_command,
    "world": world_command,
    "eval": evaluate_command,
    "exploit": exploit_command,
    "play": play_command,
    "replay": replay_command,
    "report": report_command,
    "export": export_command,
    "watch": watch_command,
    "runs": runs_command,
    "config": config_command,
    "doctor": doctor_command,
    "model": model_command,
    "games": games_command,
    "completion": completion_command,
}
