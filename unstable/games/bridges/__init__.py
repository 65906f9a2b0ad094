"""Bridges to environments of other libraries, which `games.env` names by the prefix of a bridge.

`open_spiel:liars_dice(numdice=1)` is the game `liars_dice(numdice=1)` of OpenSpiel. Its bridge is
here; other bridges are in `contrib/` or in other packages, by entry points.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from unstable.config import ConfigError
from unstable.config.plugins import described, refusing, registered
from unstable.games.environment import Environment


def is_bridged(env: str) -> bool:
    """Return whether `games.env` names a game by an installed prefix."""
    return ":" in env and env.partition(":")[0] in registered("environments")


@lru_cache(maxsize=256)
def bridged_class(env: str) -> type[Environment]:
    """Return the class of a game, which the bridge of its prefix makes from the rest of the name.

    Raises `ConfigError` if the library is not installed or has no game of that name.
    """
    prefix, _, game = env.partition(":")
    entry, place = registered("environments")[prefix], f"target = {env!r}"
    with refusing(f"{place}: {entry.value}"), _logging_kept():
        try:
            made: type[Environment] = entry.load()(game)
        except ImportError as error:
            package = entry.dist.name if entry.dist else prefix
            raise ConfigError(
                f"{place}: a package of {prefix} is not installed ({described(error)}); run: "
                f"pip install '{package}[{prefix}]'"
            ) from None
    return made


@contextmanager
def _logging_kept() -> Iterator[None]:
    """Restore the root logger after the context: importing GEM configures it."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
