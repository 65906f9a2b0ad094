"""Games of other libraries, each as an `Environment`: `games.env` names them by a prefix.

`open_spiel:liars_dice(numdice=1)` is the game `liars_dice(numdice=1)` of OpenSpiel. A library is
imported with the first game of it that is asked for.
"""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from unstable.config import DISTRIBUTION, ConfigError
from unstable.games.environment import Environment

LIBRARIES = {
    "open_spiel": ("pyspiel", "open_spiel"),
    "pettingzoo": ("pettingzoo", "pettingzoo"),
    "gymnasium": ("gymnasium", "gymnasium"),
    "gem": ("gem", "gem-llm"),
}
"""By prefix, which is the name of the module here too: what is imported, and what pip calls it."""


def is_bridged(env: str) -> bool:
    """Whether `games.env` names a game of another library."""
    return env.partition(":")[0] in LIBRARIES and ":" in env


@lru_cache(maxsize=256)
def bridged_class(env: str) -> type[Environment]:
    """The class of a game of another library.

    Raises `ConfigError` where the library is not installed, or has no such game.
    """
    prefix, _, game = env.partition(":")
    module, package = LIBRARIES[prefix]
    try:
        with _logging_kept():
            importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"target = {env!r}: {package} is not installed ({error}); "
            f"run: pip install '{DISTRIBUTION}[{prefix}]'"
        ) from None
    bridge = importlib.import_module(f"{__name__}.{prefix}")
    made: type[Environment] = bridge.environment_class(game)
    return made


@contextmanager
def _logging_kept() -> Iterator[None]:
    """The root logger stays as it is: GEM sets it up for itself as it is imported."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
