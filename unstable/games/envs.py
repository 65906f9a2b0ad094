"""TextArena's envs without wrappers: found by id or by class, made without asking the network."""

from collections.abc import Iterator
from contextlib import contextmanager

import nltk
import textarena
from textarena.envs.registration import ENV_REGISTRY

from unstable.config import GameConfig
from unstable.config.plugins import load_target
from unstable.games.catalog.words import supply_words


def known_ids() -> list[str]:
    """TextArena's ids as a config names them: those that have a `-raw` variant."""
    return [env_id for env_id in ENV_REGISTRY if f"{env_id}-raw" in ENV_REGISTRY]


def env_class(config: GameConfig) -> type:
    """The class behind `games.env`; raises what importing it raises, KeyError for an unknown id."""
    target = config.env if ":" in config.env else ENV_REGISTRY[f"{config.env}-raw"].entry_point
    with _offline():
        return load_target(target) if isinstance(target, str) else target


def make_env(config: GameConfig) -> textarena.Env:
    """A new env, not yet reset; raises what its constructor raises."""
    with _offline():
        if ":" in config.env:
            return env_class(config)(**config.args)
        return textarena.make(f"{config.env}-raw", **config.args)


@contextmanager
def _offline() -> Iterator[None]:
    # Word games ask the network at every import or make, even where the data is already there.
    supply_words()
    download = nltk.download
    nltk.download = lambda *args, **kwargs: False
    try:
        yield
    finally:
        nltk.download = download
