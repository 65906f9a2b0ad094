"""Command line: turns arguments into a config or a call, and a mistake into a one-line error.

`main` runs a command and exits; `run` returns the exit code.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer
from pydantic import ValidationError

from unstable.cli.options import HELP, SHORT_FORMS, name_of, parse_options
from unstable.cli.studies import app
from unstable.config import ConfigError, RunFailedError, one_line, shown

__all__ = ["SHORT_FORMS", "main", "parse_options", "run"]
EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main() -> NoReturn:
    """Run the command line `unstable` and exit.

    Exits with 0, 1 (failed), 2 (user's mistake), 130 (interrupt) or 143 (SIGTERM, SIGHUP).
    """
    if "_UNSTABLE_COMPLETE" in os.environ:  # called by a shell's completion
        app(prog_name="unstable")
    # Lets module:Class find a user's files, which never shadow a package.
    sys.path.append(os.getcwd())
    try:
        if {*HELP} & {*sys.argv}:  # fast: help imports no command
            sys.exit(run(sys.argv[1:]))
        from unstable.commands.session import as_program

        with as_program():
            sys.exit(run(sys.argv[1:]))
    except ConfigError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except RunFailedError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except BrokenPipeError:  # the reader ended, as in `| head`; not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.strerror is None:
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        print(f"error: {_one_line(ConfigError(place + error.strerror))}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt as error:
        from unstable.commands.session import Terminated

        sys.exit(EXIT_TERMINATED if isinstance(error, Terminated) else EXIT_INTERRUPTED)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; raise `ConfigError` for a user's mistake."""
    program = typer.main.get_command(app)
    try:
        with program.make_context("unstable", list(arguments or ["--help"])) as context:
            return program.invoke(context) or 0
    except typer.Exit as ended:
        return ended.exit_code if arguments else EXIT_USER_ERROR
    except typer.TyperException as error:
        raise ConfigError(_mistake(error)) from None


def _mistake(error: typer.TyperException) -> str:
    """Return one line on a refused option or argument: name, value and remedy."""
    if not isinstance(error.__cause__, ValidationError):
        context = getattr(error, "ctx", None)
        place = "unstable" if context is None else context.command_path
        return f"{error.format_message().rstrip('.')}; see {place} --help"
    first = error.__cause__.errors()[0]
    while isinstance(inner := first.get("ctx", {}).get("error"), ValidationError):  # in a list
        first = inner.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    name = name_of(getattr(error, "param", None))
    return f"{name} = {shown(first['input'])}: {message[0].lower()}{message[1:]}"


def _one_line(error: Exception) -> str:
    """Return the error as one line, unwrapping an error from another process."""
    return one_line(str(getattr(error, "cause", error)))
