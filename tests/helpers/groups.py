"""Config of branching games."""

from msgspec.structs import replace

from tests.helpers.collector import specs
from unstable.types import GameSpec


def branching(count: int, size: int, env: str = "count") -> list[GameSpec]:
    opponent = "base" if env == "count" else "random"
    return [
        replace(
            spec,
            game_id=(size + 1) * spec.game_id,
            branches=size,
            seats=(replace(spec.seats[0], group_size=size), spec.seats[1]),
        )
        for spec in specs(count, ("main@0", opponent), env)
    ]
