"""Plugins: a user's own code, named in the config as a target, `package.module:name`."""

import importlib
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from unstable.config import DISTRIBUTION, ConfigError, nearest, shown

logger = logging.getLogger(__name__)
T = TypeVar("T")


@contextmanager
def faults_to(answer: Callable[[BaseException], object]) -> Iterator[None]:
    """Pass exceptions of code that is not ours to `answer`, and no further.

    `answer` logs the exception, keeps it, or raises an error of ours from it. `SystemExit` is
    included: `sys.exit()` in a plugin must not end a run silently.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        answer(error)


@contextmanager
def refusing(subject: str, when: str = "") -> Iterator[None]:
    """Raise `ConfigError` for errors of a user's code: "<subject> raises <what><when>; ..."."""

    def refuse(error: BaseException) -> NoReturn:
        if isinstance(error, ConfigError):
            raise error
        line = f"{subject} raises {described(error)}{when}; fix the error"
        raise ConfigError(line) from error

    with faults_to(refuse):
        yield


def import_all(modules: Iterable[str]) -> None:
    """Import the modules that games and players need, and log each failure.

    A game that needs a module that cannot be imported fails later.
    """
    for module in sorted(modules):
        with faults_to(partial(logger.warning, "%s cannot be imported: %r", module)):
            importlib.import_module(module)


def import_users(module: str, place: str) -> ModuleType:
    """Import a user's module; raises `ConfigError` that begins with `place`."""
    with refusing(f"{place}: importing {module}"):
        try:
            return importlib.import_module(module)
        except ImportError as error:
            remedy = "run from the folder that contains it, or add that folder to PYTHONPATH"
            if error.name is not None and module.partition(".")[0] != error.name.partition(".")[0]:
                remedy = f"install the package that provides {error.name}"
            raise ConfigError(
                f"{place}: cannot import {module} ({described(error)}); {remedy}"
            ) from error


@cache
def registered(kind: str) -> Mapping[str, EntryPoint]:
    """Map names to the entry points `unstable.KIND` of installed packages, this one included.

    Raises `ConfigError` if this package as installed declares no such entry points.
    """
    found = {each.name: each for each in entry_points(group=f"unstable.{kind}")}
    if not any(each.value.startswith("unstable.") for each in found.values()):
        raise ConfigError(
            f"{DISTRIBUTION}: the installed package declares no {kind}, since it is older than the "
            "code; reinstall it (in a clone: pip install -e .)"
        )
    return found


def load_target(target: str, field: str = "target") -> Any:
    """Import `package.module:name`; raises `ConfigError` that starts with the config's field.

    The cause of the error is the exception of the import.

    >>> load_target("math:floor")(2.5)
    2
    """
    place = f"{field} = {shown(target)}"
    module_name, _, name = target.partition(":") if isinstance(target, str) else ("", "", "")
    if not (module_name and name):
        raise ConfigError(f"{place}: not a target; write package.module:name")
    module = import_users(module_name, place)
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise ConfigError(f"{place}: {module_name} has no {name}; {nearest(name, public)}")
    return getattr(module, name)


def target_or(built_in: Mapping[str, T], name: str, field: str, kind: str) -> T:
    """Return the built-in object of a name, or import `package.module:name`.

    Raises `ConfigError` that starts with the config's field if no `kind` has that name.
    """
    if ":" in name:
        found: T = load_target(name, field)
        return found
    if name not in built_in:
        hint = nearest(name, list(built_in))
        raise ConfigError(f"{field} = {shown(name)}: unknown {kind}; {hint}")
    return built_in[name]


def described(error: BaseException) -> str:
    """Describe an error of a user's code in a few words on one line."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 200 else f"{text[:200]}..."
    return text if isinstance(error, ImportError) else f"{type(error).__name__} {text}".rstrip()


def check_target(
    field: str, target: str, remedy: str, *given: Any, also: type | None = None
) -> Any:
    """Import a target that can be called with `given` or is an instance of `also`.

    Raises `ConfigError` for anything else.
    """
    place = f"{field} = {shown(target)}"
    if ":" not in target:
        raise ConfigError(f"{place}: unknown name; {remedy}")
    found = load_target(target, field)
    if also is None or not isinstance(found, also):
        check_call(place, found, remedy, *given)
    return found


def check_call(
    place: str, function: Callable[..., Any], remedy: str, /, *given: Any, **named: Any
) -> None:
    """Raise `ConfigError` that starts with `place` if a function does not take these arguments."""
    if not callable(function):
        raise ConfigError(f"{place}: not callable; {remedy}")
    try:
        inspect.signature(function).bind(*given, **named)
    except (TypeError, ValueError) as error:  # other parameters, or no known signature
        raise ConfigError(f"{place}: wrong signature, {error}; {remedy}") from None


class _OverError(BaseException):
    """Exception raised into code that is over time, which its `except Exception` does not catch."""


@contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise `TimeoutError` with `message` if the body takes more than `seconds`.

    An alarm interrupts loops, sleeps and most waits in C. It reaches only the main thread: other
    threads are not bounded, nor is code that never returns to the interpreter.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _raise_over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _OverError as over:
        # The traceback shows the interrupted line.
        raise TimeoutError(message).with_traceback(over.__traceback__) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _raise_over(*_: object) -> NoReturn:
    raise _OverError
