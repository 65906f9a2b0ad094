"""Surroundings of a run: its folder, and its end by errors and signals."""

import asyncio
import contextlib
import logging
import os
import select
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from unstable.config import ConfigError, ModelConfig, RunConfig, RunFailedError, dump
from unstable.models.weights import ready_weights
from unstable.records.environment import write_environment
from unstable.records.folder import RunFolder
from unstable.records.logs import logging_ours, logging_to, take_over
from unstable.tracking.lines import FIRST_S, Lines

if TYPE_CHECKING:
    from unstable.loop.context import Interrupt

log = logging.getLogger(__name__)
T = TypeVar("T")
_MOST_NAME = 150
"""Most bytes of a folder's automatic name before its time."""


def make_folder(
    config: RunConfig, against: str | None = None, *, called: str | None = None
) -> RunFolder:
    """Create the run's folder with its config, which names no folder, so that it can run again.

    `against` replaces the opponents in the folder's name. With `called` the folder is
    outputs/<called-time>, unless the config names a folder.
    """
    named = config.tracking.run_dir
    new = _new_run_dir(config, against, called) if named is None else Path(named).expanduser()
    folder = RunFolder(new)
    field = f"tracking.run_dir = {str(folder.root)!r}"
    try:
        folder.root.mkdir(parents=True)
        again = config.updated({"tracking.run_dir": None})
        folder.config.write_text(dump(again), encoding="utf-8")
    except FileExistsError:
        raise ConfigError(f"{field} already exists; give a new folder") from None
    except OSError as error:
        raise ConfigError(
            f"{field} cannot be created ({error.strerror}); give a writable folder"
        ) from None
    return folder


def _new_run_dir(config: RunConfig, against: str | None, called: str | None) -> Path:
    """Return outputs/<name>, or <called or model-games-opponents>-<time>, numbered if taken."""
    name = config.tracking.name if called is None else None
    if name is None:
        games = "+".join(game.key.rpartition(":")[2] for game in config.games)
        fixed = "+".join(opponent.key for opponent in config.opponents.fixed)
        made = f"{Path(config.model.name).name}-{games}-{against or fixed or 'self'}"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        short = (called or made).encode()[:_MOST_NAME].decode(errors="ignore")
        name = f"{short}-{stamp}".replace("/", "_").replace(":", "_")
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(path for each in names if not (path := Path("outputs") / each).exists())


@contextlib.contextmanager
def new_run(
    config: RunConfig, command: str | None, against: str | None = None
) -> Iterator[RunFolder]:
    """Yield a run's new folder, held by this process; `command` is the run's command line.

    A mistake or an interrupt before the first version removes it, so that the corrected command
    can use its name.
    """
    folder = make_folder(config, against)
    try:
        with folder.held(f"tracking.run_dir = {str(folder.root)!r}"):
            write_environment(folder, command)
            yield folder
    except (ConfigError, KeyboardInterrupt):
        if not folder.versions():
            shutil.rmtree(folder.root, ignore_errors=True)
        raise


def status(line: str) -> None:
    """Print a line that is not a result on stderr."""
    print(line, file=sys.stderr)


def have_weights(model: ModelConfig) -> None:
    """Make sure that the model's weights are on this machine, with progress lines of a download.

    Raises `ConfigError` if that fails, and an interrupt's exception.
    """

    def downloading(what: str, done: int, total: int) -> None:
        lines.phase(f"{what}, {done:,} of {total:,}")

    lines = Lines(status)
    with lines.refreshing():
        ready_weights(model, downloading)


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Show that a run is starting, if that takes seconds; imports have already taken some."""

    def show(line: str) -> None:
        lines.patience_s = FIRST_S
        status(line)

    lines = Lines(show)
    lines.patience_s = FIRST_S / 2
    lines.phase("starting: checking the config")
    with lines.refreshing():
        yield


@contextlib.contextmanager
def gone_after(folder: Path, when: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Delete a folder at the end, if `when` returns True, unless its log says what failed."""
    failed = False
    try:
        yield
    except RunFailedError:
        failed = True
        raise
    finally:
        if not failed and when():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def failures_logged(folder: RunFolder, process: str) -> Iterator[None]:
    """Log an unexpected error with its traceback, and raise it as `RunFailedError`.

    If the folder is gone, the error names that as its reason. `ConfigError` passes unchanged.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        log.exception("the run failed")
        is_there = folder.root.is_dir()
        why = _first_line(error) if is_there else f"the run's folder {folder.root} was deleted"
        raise RunFailedError(f"{why}; details in {folder.log(process)}") from error


@contextlib.contextmanager
def at_work(folder: RunFolder, component: str, *, light: bool = False) -> Iterator[None]:
    """End the work in order on signals, and log failures to `logs/<component>.log`.

    Libraries log there too if the process is ours, unless the work is `light` and loads none.
    """
    logging_there = logging_ours if light else logging_to
    with ended_by_sigterm(), logging_there(folder, component), failures_logged(folder, component):
        yield


def _first_line(error: Exception) -> str:
    if isinstance(error, RunFailedError):
        return str(error)
    cause = getattr(error, "cause", None) or error  # Ray wraps errors of other processes
    said = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {said[0]}" if said else type(cause).__name__


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP of a closed terminal: a run ends in order, as by Ctrl-C."""


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `Terminated` within the context."""

    def end(number: int, _: object) -> NoReturn:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    with handled(end):
        yield


@contextlib.contextmanager
def as_program() -> Iterator[None]:
    """Take over this process: libraries log where the run does, and SIGTERM ends it in order."""
    take_over()
    with ended_by_sigterm():
        yield


def run_to_end(
    main: Coroutine[Any, Any, T],
    show: Callable[[str], None] = lambda _: None,
    interrupt: "Interrupt | None" = None,
) -> T:
    """Run a coroutine by `asyncio.run`; Ctrl-C, SIGTERM and SIGHUP cancel it.

    A signal passes a line to `show`. Ctrl-C lets it finish the step that defers `interrupt`. Then
    it raises `KeyboardInterrupt` or `Terminated`; a second signal raises it at once. If this thread
    has a running event loop, as in a notebook, the coroutine runs in another thread.
    """
    stop: KeyboardInterrupt | None = None
    cancel: Callable[[], object] | None = None

    def end(number: int, _: object) -> None:
        nonlocal stop
        if stop is not None:
            raise stop
        name, first = signal.Signals(number).name, ""
        if number == signal.SIGINT and interrupt is not None:
            interrupt.wanted, first = True, interrupt.deferred_by
        stop = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
        if cancel is not None and not first:
            cancel()
        once = first and f" once {first} is finished"
        show(f"{name}: the run stops cleanly{once}; a second signal stops it at once")

    async def cancelled_by_signals() -> T:
        nonlocal cancel
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        cancel = partial(loop.call_soon_threadsafe, task.cancel)
        with handled(end):
            return await main

    try:
        return _run(cancelled_by_signals(), partial(end, signal.SIGINT, None))
    except asyncio.CancelledError:
        if stop is not None:
            raise stop from None
        raise


def _run(main: Coroutine[Any, Any, T], interrupt: Callable[[], None]) -> T:
    """Call `asyncio.run`, in a thread if this one has a loop; Ctrl-C then calls `interrupt`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main)
    with ThreadPoolExecutor(1, thread_name_prefix="run") as thread:
        result = thread.submit(asyncio.run, main)
        while True:
            try:
                return result.result()
            except KeyboardInterrupt:
                if result.done():
                    raise
                interrupt()


@contextlib.contextmanager
def handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Call the handler on SIGTERM, Ctrl-C and SIGHUP within the context, unless ignored (nohup)."""
    if threading.current_thread() is not threading.main_thread():  # only it sets handlers
        yield
        return

    def heard(number: int, frame: object) -> None:
        if number == signal.SIGHUP:  # shell and system may each send it, repeatedly
            signal.signal(number, signal.SIG_IGN)
            _leave_terminal()
        handler(number, frame)

    heeded = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    before = {n: signal.getsignal(n) for n in heeded if signal.getsignal(n) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number, former in before.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, former)


def _leave_terminal() -> None:
    """Redirect the output of a closed terminal to nowhere, so that printing is no error."""
    with open(os.devnull, "r+b") as nowhere:
        for descriptor in (0, 1, 2):
            with contextlib.suppress(OSError):  # closed
                look = select.poll()
                look.register(descriptor, 0)
                is_terminal = stat.S_ISCHR(os.fstat(descriptor).st_mode)
                if is_terminal and any(told & select.POLLHUP for _, told in look.poll(0)):
                    os.dup2(nowhere.fileno(), descriptor)
