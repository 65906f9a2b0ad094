"""unstable: trains language-model agents by playing text games against themselves.

>>> import unstable
>>> config = unstable.load("default", {"loop.steps": 2, "games.0.env": "Nim-v0"})
>>> folder = unstable.train(config)  # doctest: +SKIP
"""

from unstable.config import ConfigError, RunConfig, load, parse
from unstable.folder import RunFolder

__all__ = ["ConfigError", "RunConfig", "RunFolder", "load", "parse", "train"]


def train(config: RunConfig) -> RunFolder:
    """Train as `unstable train` does; returns the run's folder. See `unstable.launch.train`."""
    from unstable import launch  # torch and Ray are loaded only where a run starts

    return launch.train(config)
