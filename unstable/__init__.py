"""unstable: trains language-model agents by playing text games against themselves.

>>> import unstable
>>> config = unstable.load("default", {"loop.steps": 2, "games.0.env": "Nim-v0"})
>>> folder = unstable.train(config)  # doctest: +SKIP
>>> run = unstable.read(folder)  # doctest: +SKIP
>>> run.metrics, run.games, run.turns  # doctest: +SKIP
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstable.config import ConfigError, RunConfig, load, parse
    from unstable.records.data import RunData, read
    from unstable.records.folder import RunFolder
    from unstable.tracking.sinks.base import Sink

__all__ = [
    "ConfigError",
    "RunConfig",
    "RunData",
    "RunFolder",
    "Sink",
    "load",
    "parse",
    "read",
    "train",
]
_HOMES = {
    "unstable.config": ("ConfigError", "RunConfig", "load", "parse"),
    "unstable.records.data": ("RunData", "read"),
    "unstable.records.folder": ("RunFolder",),
    "unstable.tracking.sinks.base": ("Sink",),
}
"""Imported when first asked for: a program that plays a run's games needs only `drivers`."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(home), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def train(
    config: "RunConfig",
    callbacks: "Sequence[Sink | Callable[[RunConfig, RunFolder], Sink]]" = (),
) -> "RunFolder":
    """Train as `unstable train` does; returns the run's folder. See `commands.train.train`.

    `callbacks` are sinks (docs/tracking.md), or what makes one of the run's config and folder.
    """
    from unstable.commands.train import train as run

    return run(config, callbacks=callbacks)
