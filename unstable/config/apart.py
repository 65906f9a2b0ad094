"""A user's code tried in a process of its own, which it may do to what it likes."""

import contextlib
import os
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from typing import NoReturn, TypeVar

from unstable.config.base import ConfigError

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """What `work` returns, or raises as `ConfigError`, in a fork of this process.

    Where it ends that process, by `os._exit` or a signal, `ConfigError` says how. Whatever it
    changes there, such as the current folder, stays there.
    """
    reading, writing = Pipe(duplex=False)
    child = forked()
    if child == 0:
        carry_out(work, lambda *answer: writing.send(answer), ConfigError)
    writing.close()
    with reading:
        try:
            error, value = reading.recv()
        except EOFError:
            error, value = None, None
        _, status = os.waitpid(child, 0)
    if error is None:
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise ConfigError(
            f"what the config names, a game, a bot or another target, ended its process {how} as "
            "it was tried; mend it there"
        )
    if error:
        raise value
    result: T = value
    return result


def forked() -> int:
    """A fork of this process: its id, and 0 in it. Nothing that is printed comes out twice."""
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


def carry_out(
    work: Callable[[], object],
    answer: Callable[[bool, object], None],
    *passed_on: type[BaseException],
) -> NoReturn:
    """In a fork: give `answer` what the work returns, or True and what it raises of `passed_on`.

    Another error is a fault of ours: it is shown here, where it is. Nothing of this process's end
    is done twice, so that it ends without going back.
    """
    code = 1
    try:
        try:
            content = False, work()
        except passed_on as error:
            content = True, error.with_traceback(None)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
                stream.flush()
        answer(*content)
        code = 0
    finally:
        try:
            if code and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
