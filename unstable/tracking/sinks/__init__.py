"""Sinks: receivers of records and figures, one class per destination, with one base, `base.Sink`.

Records of games and samples, rows of metrics, scores and ratings come in; nothing comes out. A new
sink is a class and an entry in `open_sinks`; custom ones come from `tracking.sinks` and callbacks.
"""

import contextlib
import logging
from collections.abc import Callable, Sequence

from unstable.config import ConfigError, RunConfig, shown
from unstable.config.plugins import check_call, check_target, refusing, registered
from unstable.records.folder import RunFolder
from unstable.tracking.sinks.base import Sink, SinkBorder
from unstable.tracking.sinks.files import GameFiles, MetricsFile, RatingsFile, SampleFiles
from unstable.tracking.sinks.tensorboard import TensorBoard, check_tensorboard
from unstable.tracking.sinks.wandb import WandbRun

logger = logging.getLogger(__name__)
SinkMaker = Callable[[RunConfig, RunFolder], Sink]
Callback = Sink | SinkMaker
"""Sink, or a function or class that makes one from the run's config and folder."""
REMEDY = "pass a subclass of unstable.Sink, which is called with (config, folder)"


def open_sinks(config: RunConfig, folder: RunFolder, own: Sequence[SinkMaker] = ()) -> list[Sink]:
    """Open the sinks of a run, the files first; `own` makes the custom ones.

    Raises `ConfigError` if a sink cannot be made, and `OSError` if a file cannot be opened.
    """
    files = [
        MetricsFile(folder),
        GameFiles(folder),
        SampleFiles(folder),
        RatingsFile(folder),
    ]
    return open_watchers(config, folder, own, files)


def open_watchers(
    config: RunConfig, folder: RunFolder, own: Sequence[SinkMaker], files: Sequence[Sink]
) -> list[Sink]:
    """Return `files`, which are open, followed by the other sinks, which it opens.

    Closes all of them, the newest first, if one cannot be opened.
    """
    opened = [*files]
    with contextlib.ExitStack() as undo:
        undo.callback(lambda: SinkBorder(logger.warning).emit(reversed(opened), "close"))
        if config.tracking.tensorboard:
            opened.append(TensorBoard(folder))
        if config.tracking.wandb:
            opened.append(WandbRun(config, folder))
        for make in own:
            opened.append(make(config, folder))
        undo.pop_all()
    return opened


def check_sinks(config: RunConfig) -> None:
    """Raise `ConfigError` for a sink that cannot be imported or called; makes none."""
    if config.tracking.tensorboard:
        check_tensorboard()
    own_sinks(config)


def own_sinks(config: RunConfig, callbacks: Sequence[Callback] = ()) -> list[SinkMaker]:
    """Return the makers of custom sinks; raises `ConfigError` for one that cannot be called."""
    makers = []
    for index, target in enumerate(config.tracking.sinks):
        field, known = f"tracking.sinks.{index}", {} if ":" in target else registered("sinks")
        path = known[target].value if target in known else target
        remedy = f"write {' or '.join(known)}, or {REMEDY}" if known else REMEDY
        make = check_target(field, path, remedy, config, None)
        makers.append(_maker(f"{field} = {shown(target)}", make))
    for index, callback in enumerate(callbacks):
        place = f"callbacks.{index} = {shown(repr(callback))}"
        if not isinstance(callback, Sink):
            check_call(place, callback, REMEDY, config, None)
        makers.append(_maker(place, callback))
    return makers


def _maker(place: str, callback: Callback) -> SinkMaker:
    def make(config: RunConfig, folder: RunFolder) -> Sink:
        if isinstance(callback, Sink):
            return callback
        with refusing(f"{place}:"):
            sink = callback(config, folder)
        if not isinstance(sink, Sink):
            raise ConfigError(f"{place}: returned a {type(sink).__name__}; {REMEDY}")
        return sink

    return make
