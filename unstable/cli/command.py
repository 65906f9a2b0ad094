"""From a command line to an exit code."""

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from unstable.cli.commands import COMMANDS
from unstable.cli.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_USER_ERROR,
    HELP,
    VERSION,
)
from unstable.cli.table import carry_out, overview
from unstable.config import DISTRIBUTION, ConfigError, RunFailedError, nearest, one_line


def main() -> NoReturn:
    """Entry point of `unstable`.

    Exits with 0, 1 (failed), 2 (user's mistake), 130 (interrupt) or 143 (SIGTERM, SIGHUP).
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
    except OSError as error:
        if error.strerror is None:
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {_one_line(ConfigError(place + error.strerror))}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except Terminated:
        sys.exit(EXIT_TERMINATED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line; raises `ConfigError` for a mistake in it."""
    if not arguments or arguments[0] in (*HELP, "help"):
        print(overview(COMMANDS))
        return 0 if arguments else EXIT_USER_ERROR
    name, *rest = arguments
    if name in VERSION:
        print(f"unstable {metadata.version(DISTRIBUTION)}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(f"command {name!r} is unknown; {nearest(name, list(COMMANDS))}")
    return carry_out(name, COMMANDS[name], rest)


def _one_line(error: Exception) -> str:
    """The error in one line, also where it was found in another process."""
    return one_line(str(getattr(error, "cause", error)))
