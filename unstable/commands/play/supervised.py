"""Work with a user's code in a process of its own, before a person, watched from this one.

Whatever that code does to its process, a line says who did what, and what was told is kept.
"""

import contextlib
import math
import os
import signal
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from unstable.commands.session import Terminated, handled
from unstable.config import ConfigError, RunFailedError
from unstable.config.apart import carry_out, forked

GRACE_S = 10.0
"""Seconds after an interrupt, or the last word, after which the process is killed."""
_TICK_S = 0.2
_HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PASSED_ON = (ConfigError, RunFailedError, KeyboardInterrupt, BrokenPipeError)
T = TypeVar("T")


class Notes:
    """What the process tells the one that watches it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def at_work(self, who: str, limit_s: float = math.inf) -> None:
        """From now on it is `who` that ends the process, or is not done in so many seconds."""
        self._send("at work", (who, limit_s))

    def tell(self, value: object) -> None:
        """A value for the watching process to keep."""
        self._send("told", value)

    def last_word(self, is_error: bool, content: object) -> None:
        """What the work came to."""
        self._send("raised" if is_error else "returned", content)

    def _send(self, kind: str, content: object) -> None:
        try:
            self._connection.send((kind, content))
        except (OSError, ValueError):  # nobody watches, or the way was closed here
            os._exit(1)


def supervised(work: Callable[[Notes], T], hear: Callable[[Any], None] = lambda _: None) -> T:
    """What `work` returns or raises, in a fork of this process; what it tells goes to `hear`.

    Raises `RunFailedError` where it ends its process or takes too long: who, and how. Ctrl-C,
    SIGTERM and SIGHUP are the work's to heed; after `GRACE_S` they end it all the same. The
    terminal is then as it was before.
    """
    before = {number: signal.getsignal(number) for number in _HEEDED}
    reading, writing = Pipe(duplex=False)
    watched = _Watched(reading, hear)
    with _terminal_kept(), handled(watched.interrupt):
        watched.pid = forked()
        if watched.pid == 0:
            for number, handler in before.items():
                signal.signal(number, handler)
            reading.close()
            notes = Notes(writing)
            carry_out(partial(work, notes), notes.last_word, *_PASSED_ON)
        writing.close()
        try:
            watched.until_the_end()
        finally:
            watched.kill()
            reading.close()
    return watched.outcome()


class _Watched:
    """The process, from here."""

    def __init__(self, reading: Connection, hear: Callable[[Any], None]) -> None:
        self.pid = 0
        self._reading, self._hear = reading, hear
        self._who, self._left_s, self._limit_s = "the game", math.inf, math.inf
        self._said: tuple[str, Any] | None = None  # its last word
        self._status: int | None = None
        self._is_late = False
        self._interrupt: int | None = None

    def interrupt(self, number: int, _: object) -> None:
        """Pass a signal on, but for a Ctrl-C that the terminal has sent to both."""
        self._left_s = min(self._left_s, GRACE_S)
        self._interrupt = self._interrupt or number
        if self.pid and not (number == signal.SIGINT and _is_in_foreground()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def until_the_end(self) -> None:
        """Hear what it says, until it has ended or has to be."""
        is_open = True
        while self._left_s > 0:
            began = time.monotonic()
            if is_open and self._reading.poll(_TICK_S):
                is_open = self._read()
                continue
            if not is_open:
                time.sleep(0.01)
            if self._has_ended():
                while is_open and self._reading.poll(0):
                    is_open = self._read()
                return
            self._left_s -= min(time.monotonic() - began, 1.0)  # it may have been stopped by Ctrl-Z
        self._is_late = True

    def _read(self) -> bool:
        """Take in the next message; False where there comes none any more."""
        try:
            kind, content = self._reading.recv()
        except (EOFError, OSError):
            self._left_s = min(self._left_s, GRACE_S)
            return False
        if kind == "told":
            self._hear(content)
        elif kind == "at work":
            self._who, self._limit_s = content
        else:
            self._said = kind, content
        left = self._limit_s if self._said is None else GRACE_S
        self._left_s = left if self._interrupt is None else min(self._left_s, left)
        return True

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def kill(self) -> None:
        """End it, unless it has ended."""
        if not self._has_ended():
            os.kill(self.pid, signal.SIGKILL)
            _, self._status = os.waitpid(self.pid, 0)

    def outcome(self) -> Any:
        """What came of the work."""
        if self._said is not None:
            kind, content = self._said
            if kind == "raised":
                raise content
            return content
        if self._interrupt is not None:
            raise KeyboardInterrupt if self._interrupt == signal.SIGINT else Terminated
        if self._is_late and self._limit_s < math.inf:
            raise RunFailedError(
                f"{self._who} was not done in games.turn_timeout = {self._limit_s:g} s, and its "
                "process was ended"
            )
        assert self._status is not None, "it has been waited for"
        raise RunFailedError(f"{self._who} ended its process {_how(self._status)}")


def _how(status: int) -> str:
    """How a process ended, in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    memory = " (as the system does where memory runs out)" if code == -signal.SIGKILL else ""
    return f"by {name}{memory}"


def _is_in_foreground() -> bool:
    """Whether a Ctrl-C at the terminal comes to this process and its child."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # there is none
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # it has been closed
        return False
    finally:
        os.close(terminal)


@contextlib.contextmanager
def _terminal_kept() -> Iterator[None]:
    """The terminal's settings are afterwards what they were before."""
    blocking, settings = {}, None
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):  # it is closed
            blocking[descriptor] = os.get_blocking(descriptor)
    with contextlib.suppress(OSError, termios.error):  # input is no terminal
        settings = termios.tcgetattr(0)
    try:
        yield
    finally:
        for descriptor, before in blocking.items():
            with contextlib.suppress(OSError):
                os.set_blocking(descriptor, before)
        if settings is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, settings)
