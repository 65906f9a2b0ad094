"""Sinks: where what was seen is put, a class each.

Records of games and samples, rows of metrics and ratings come in; nothing comes out. A new one is a
class of `base.Sink` and an entry in `open_sinks`.
"""

from unstable.config import RunConfig
from unstable.records.folder import RunFolder
from unstable.tracking.sinks.base import Sink
from unstable.tracking.sinks.files import GameFiles, MetricsFile, RatingsFile, SampleFiles
from unstable.tracking.sinks.wandb import WandbRun


def open_sinks(config: RunConfig, folder: RunFolder) -> list[Sink]:
    """The sinks of a run; raises `ConfigError` for W&B, and `OSError` for files that cannot be."""
    sinks: list[Sink] = [
        MetricsFile(folder),
        GameFiles(folder),
        SampleFiles(folder),
        RatingsFile(folder),
    ]
    return [*sinks, WandbRun(config, folder)] if config.tracking.wandb else sinks
