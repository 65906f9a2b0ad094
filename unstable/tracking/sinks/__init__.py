"""Sinks: where what was seen is put, a class each, behind one protocol, `base.Sink`.

Records of games and samples, rows of metrics, scores and ratings come in; nothing comes out. A new
one is a class and an entry in `open_sinks`; a user's own come from `tracking.sinks` and callbacks.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from unstable.config import RunConfig
from unstable.records.folder import RunFolder
from unstable.tracking.sinks.base import Sink
from unstable.tracking.sinks.files import GameFiles, MetricsFile, RatingsFile, SampleFiles
from unstable.tracking.sinks.tensorboard import TensorBoard
from unstable.tracking.sinks.wandb import WandbRun

SinkMaker = Callable[[RunConfig, RunFolder], Sink]


def open_sinks(config: RunConfig, folder: RunFolder, own: Sequence[SinkMaker] = ()) -> list[Sink]:
    """The sinks of a run, the files first; `own` are a user's.

    Raises `ConfigError` for one that cannot be, and `OSError` for files that cannot be.
    """
    with _closed_again() as opened:
        opened += [
            MetricsFile(folder),
            GameFiles(folder),
            SampleFiles(folder),
            RatingsFile(folder),
        ]
        opened += open_watchers(config, folder, own)
    return opened


def open_watchers(
    config: RunConfig, folder: RunFolder, own: Sequence[SinkMaker] = ()
) -> list[Sink]:
    """The sinks besides the run's files."""
    with _closed_again() as opened:
        if config.tracking.tensorboard:
            opened.append(TensorBoard(folder))
        if config.tracking.wandb:
            opened.append(WandbRun(config, folder))
        for make in own:
            opened.append(make(config, folder))
    return opened


@contextlib.contextmanager
def _closed_again() -> Iterator[list[Sink]]:
    """What was opened is closed, the newest first, if another one cannot be."""
    opened: list[Sink] = []
    try:
        yield opened
    except BaseException:
        for sink in reversed(opened):
            with contextlib.suppress(Exception):
                sink.close()
        raise
