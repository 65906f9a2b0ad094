"""Errors for draws that trees cannot enumerate: floats, private generators, and numpy's.

`chance.all_draws` enumerates integers, choices and shuffles of `random`. Any other draw would have
a single outcome in the tree, which would then be the tree of another game.
"""

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import numpy as np
from numpy.random import mtrand

_PLAIN = ("random", "getrandbits")
"""Source of all draws of `random`, except for draws by `_randbelow`."""
_KEPT = {"seed", "get_state", "set_state"}


class OtherDrawError(BaseException):
    """Raised for a draw that is not enumerated; a `BaseException`, so that games do not catch it.

    Its text names the call, such as random.choices.
    """


@contextlib.contextmanager
def refused() -> Iterator[list[str]]:
    """Raise `OtherDrawError` for such a draw by this thread within the context.

    Draws of numpy's `Generator` cannot be detected. Yields a list to which calls that create one
    are added.
    """
    thread, made = threading.get_ident(), list[str]()
    with contextlib.ExitStack() as patches:

        def put(owner: Any, name: str, refuse: Callable[..., Any]) -> None:
            before = getattr(owner, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                if threading.get_ident() == thread:
                    refuse(*args)
                return before(*args, **kwargs)

            patches.callback(_restore, owner, name, vars(owner).get(name))
            setattr(owner, name, call)

        for name in _PLAIN:
            put(random.Random, name, _of(name))
            put(random.SystemRandom, name, _of(name))
            put(random, name, _saying(f"random.{name}"))
        for name, function in list(vars(np.random).items()):
            if getattr(function, "__self__", None) is mtrand._rand and name not in _KEPT:
                put(np.random, name, _saying(f"numpy.random.{name}"))
        put(np.random, "default_rng", lambda *_: made.append("numpy.random.default_rng"))
        yield made


def _restore(owner: Any, name: str, before: Any) -> None:
    if before is None:  # it was inherited
        delattr(owner, name)
    else:
        setattr(owner, name, before)


def _saying(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise OtherDrawError(name)

    return refuse


def _of(name: str) -> Callable[..., NoReturn]:
    """Return a method that raises `OtherDrawError` with the name of the function of `random`."""

    def refuse(generator: random.Random, *_: Any) -> NoReturn:
        called = name
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_globals.get("__name__") == "random":
            called, frame = frame.f_code.co_name, frame.f_back
        shared = generator is random._inst
        own = f"{called} of a private random.{type(generator).__name__}"
        raise OtherDrawError(f"random.{called}" if shared else own)

    return refuse
