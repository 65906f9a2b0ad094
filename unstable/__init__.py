"""unstable: trains language-model agents by playing text games against themselves.

>>> import unstable
>>> config = unstable.load("default", {"loop.steps": 2, "games.0.env": "Nim-v0"})
>>> folder = unstable.train(config)  # doctest: +SKIP
"""

from unstable.config import ConfigError, RunConfig, load, parse
from unstable.records.folder import RunFolder

__all__ = ["ConfigError", "RunConfig", "RunFolder", "load", "parse", "train"]


def train(config: RunConfig) -> RunFolder:
    """Train as `unstable train` does; returns the run's folder. See `runtime.train.train`."""
    from unstable.runtime import train as runtime  # loads torch, which not every caller needs

    return runtime.train(config)
