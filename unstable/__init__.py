"""unstable: trains language-model agents by playing text games against themselves.

>>> import unstable
>>> config = unstable.load("default", {"loop.steps": 2, "games.0.env": "Nim-v0"})
>>> folder = unstable.train(config)  # doctest: +SKIP
>>> run = unstable.read(folder)  # doctest: +SKIP
>>> run.metrics, run.games, run.turns  # doctest: +SKIP
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unstable.buffers.buffer import Buffer
    from unstable.collectors.players.base import Player
    from unstable.commands.train import Loop
    from unstable.config import ConfigError, RunConfig, load, parse
    from unstable.games.environment import Environment
    from unstable.league.schedule import Schedule
    from unstable.learners.algorithm import Algorithm
    from unstable.loop.context import Context
    from unstable.loop.protocols import Actor, HeldVersion, Learner
    from unstable.records.data import RunData, read
    from unstable.records.folder import RunFolder
    from unstable.tracking.sinks.base import Sink

__all__ = [
    "Actor",
    "Algorithm",
    "Buffer",
    "ConfigError",
    "Context",
    "Environment",
    "HeldVersion",
    "Learner",
    "Player",
    "RunConfig",
    "RunData",
    "RunFolder",
    "Schedule",
    "Sink",
    "load",
    "parse",
    "read",
    "resume",
    "train",
]
_HOMES = {
    "unstable.buffers.buffer": ("Buffer",),
    "unstable.collectors.players.base": ("Player",),
    "unstable.games.environment": ("Environment",),
    "unstable.league.schedule": ("Schedule",),
    "unstable.learners.algorithm": ("Algorithm",),
    "unstable.loop.context": ("Context",),
    "unstable.loop.protocols": ("Actor", "HeldVersion", "Learner"),
    "unstable.config": ("ConfigError", "RunConfig", "load", "parse"),
    "unstable.records.data": ("RunData", "read"),
    "unstable.records.folder": ("RunFolder",),
    "unstable.tracking.sinks.base": ("Sink",),
}
"""Names by module, imported at first access: a program with only `drivers` needs none of them."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(home), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def train(
    config: "RunConfig",
    callbacks: "Sequence[Sink | Callable[[RunConfig, RunFolder], Sink]]" = (),
    loop: "Loop | None" = None,
) -> "RunFolder":
    """Train like `unstable train` and return the run's folder. See `commands.train.train`.

    `callbacks` are sinks (docs/tracking.md), or functions from the run's config and folder to a
    sink. `loop` is a coroutine function that replaces `loop.train.train`.
    """
    from unstable.commands.train import train as run

    return run(config, callbacks=callbacks) if loop is None else run(config, None, callbacks, loop)


def resume(
    run_dir: "Path | str", overrides: "Mapping[str, Any] | None" = None, loop: "Loop | None" = None
) -> "RunFolder":
    """Resume a run from its newest version, like `unstable train --resume`; return its folder.

    `overrides` are changes to its config, by dotted path. `loop` is a coroutine function that
    replaces `loop.train.train`.
    """
    from unstable.commands.resume import resume as run

    return run(Path(run_dir), overrides or {}, *([] if loop is None else [loop]))
