"""Routing: adapters stay together, no group waits forever, and the draw itself is unbiased."""

from collections import Counter, defaultdict

from tests.helpers.rows import every_row
from unstable.config import parse
from unstable.league.schedule import AHEAD_PER_ACTOR, Schedule
from unstable.types import GameSpec, PlayerId

NOW = PlayerId.policy(8)
PAST = [PlayerId.policy(version) for version in range(8)]


def opponent(group: list[GameSpec]) -> int | None:
    versions = {seat.player.version for seat in group[0].seats} - {8, None}
    return versions.pop() if versions else None


def dealt(num_actors: int, rounds: int = 400, order: list[int] | None = None):
    schedule = Schedule(parse({"seed": 1}), num_actors)
    turns = (order or list(range(num_actors))) * rounds
    return [(actor, schedule.draw(actor, NOW, PAST)) for actor in turns]


def test_single_actor_plays_in_schedule_order() -> None:
    schedule = Schedule(parse({"seed": 1}))
    expected = [schedule.draw_group(NOW, PAST) for _ in range(50)]
    assert [group for _, group in dealt(1, 50)] == expected


@every_row("num_actors", 2, 4)
def test_past_versions_stay_mostly_on_one_actor(num_actors: int) -> None:
    actors: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for actor, group in dealt(num_actors):
        if (version := opponent(group)) is not None:
            actors[version][actor] += 1
    assert set(actors) == set(range(8))
    at_home = sum(counts[version % num_actors] for version, counts in actors.items())
    total = sum(counts.total() for counts in actors.values())
    assert at_home / total > 0.7  # by chance: 1 / num_actors


def test_no_group_waits_forever_for_its_home_actor() -> None:
    played = [group[0].game_id for _, group in dealt(4, 300, order=[0])]
    late = max(place - game for place, game in enumerate(played))
    assert late <= (AHEAD_PER_ACTOR * 4 + 1) ** 2
    assert set(range(200)) <= set(played)


def test_routing_keeps_opponent_shares() -> None:
    shares = Counter(opponent(group) for _, group in dealt(4, 1000))
    total = shares.total()
    assert abs(shares[None] / total - 0.65) < 0.03  # self and fixed
    for version in range(8):
        assert abs(shares[version] / total - 0.35 / 8) < 0.015


def test_new_version_starts_with_its_own_groups() -> None:
    schedule = Schedule(parse({"seed": 1}), 3)
    schedule.draw(0, NOW, PAST)
    for actor in range(3):
        group = schedule.draw(actor, PlayerId.policy(9), [*PAST, NOW])
        assert PlayerId.policy(9) in {seat.player for seat in group[0].seats}


def test_adapter_opponents_have_a_home_actor() -> None:
    fixed = [{"kind": "checkpoint", "path": "x", "name": name} for name in ("warm", "cold")]
    config = parse({"opponents": {"draw": {"self": 0, "past": 0, "fixed": 1}, "fixed": fixed}})
    schedule = Schedule(config, 2)
    actors: defaultdict[PlayerId, Counter[int]] = defaultdict(Counter)
    for actor in [0, 1] * 200:
        for seat in schedule.draw(actor, NOW, PAST)[0].seats:
            if seat.player != PlayerId.policy(8):
                actors[seat.player][actor] += 1
    homes = [max(counts, key=lambda actor: counts[actor]) for counts in actors.values()]
    assert sorted(homes) == [0, 1]
    assert all(max(counts.values()) / counts.total() > 0.7 for counts in actors.values())
