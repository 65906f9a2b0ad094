"""How many versions a forward pass of vLLM may mix: a request of one more waits for a slot."""

from collections.abc import Callable

from unstable.config import RunConfig
from unstable.planning.memory import EngineMemory

LEAST_SLOTS = 8
"""Slots that an engine has whatever they take, where so many versions can play."""
_SHARE = 0.25
"""Share of what weights, a step and the process leave that further slots may take."""


def versions_in_play(config: RunConfig) -> int:
    """LoRAs that the games of one engine may ask for at once.

    They are the current version and those before it whose games are still learned from, past ones
    as opponents, opponents that are LoRAs, and who makes openings.
    """
    opponents = config.opponents
    others = sum(each.adapter_folder is not None for each in opponents.fixed)
    others_drawn = [config.guard.opponents] if "opponents" in config.guard.action else []
    drawn = any(share.past for share in (opponents.draw, *others_drawn))
    past = max(config.buffer.max_staleness, opponents.pool_size * drawn)
    return 1 + min(past, opponents.pool_size) + others + len(config.openings.versions)


def slots_that_fit(
    engine: Callable[[int], EngineMemory], limit_bytes: int, least: int, wanted: int
) -> int:
    """Up to `wanted` slots; `engine` says what an engine with so many takes."""
    fixed = sum(engine(least).fixed.values())
    most = fixed + _SHARE * (limit_bytes - fixed)
    fitting = (n for n in range(wanted, least, -1) if sum(engine(n).fixed.values()) <= most)
    return next(fitting, least)
