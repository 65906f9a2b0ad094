"""Groups that a schedule draws, and branching games."""

from msgspec.structs import replace

from tests.helpers.collector import specs
from unstable.league.schedule import Schedule
from unstable.types import GameSpec, PlayerId


def drawn_groups(schedule: Schedule, count: int) -> list[list[GameSpec]]:
    """Draw groups for version 2, with versions 0 and 1 before it."""
    past = [PlayerId.policy(0), PlayerId.policy(1)]
    return [schedule.draw_group(PlayerId.policy(2), past) for _ in range(count)]


def drawn_games(schedule: Schedule, count: int) -> list[GameSpec]:
    return [spec for group in drawn_groups(schedule, count) for spec in group]


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
