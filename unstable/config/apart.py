"""A user's code tried in a process of its own, which it may do to what it likes."""

import os
import pickle
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from unstable.config.base import ConfigError

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """What `work` returns, or raises as `ConfigError`, in a fork of this process.

    Where it ends that process, by `os._exit` or a signal, `ConfigError` says how. Whatever it
    changes there, such as the current folder, stays there.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(writing, work)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    _, status = os.waitpid(child, 0)
    if not content:
        code = os.waitstatus_to_exitcode(status)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise ConfigError(
            f"what the config names, a game, a bot or another target, ended its process {how} as "
            "it was tried; mend it there"
        )
    is_error, value = pickle.loads(content)
    if is_error:
        raise ConfigError(value)
    return value


def _answer(writing: int, work: Callable[[], object]) -> NoReturn:
    """In the fork: do it and write what came of it; nothing of this process's end is done twice."""
    code = 1
    try:
        try:
            content = pickle.dumps((False, work()))
        except ConfigError as error:
            content = pickle.dumps((True, str(error)))
        with os.fdopen(writing, "wb") as file:
            file.write(content)
        code = 0
    finally:
        try:
            if code:
                sys.excepthook(*sys.exc_info())
            sys.stdout.flush()
        finally:  # whatever fails in saying so: what follows is the other process's to do
            os._exit(code)
