"""Share of an engine's places that wait for a LoRA slot, simulated as vLLM admits requests."""

import random
from collections import Counter, deque
from collections.abc import Iterator

from bench.capacity import machine_named
from tests.helpers.rows import every_row
from unstable.config import load
from unstable.engines.kinds import NEEDS
from unstable.planning.case import LEAST_SLOTS, versions_at_once, versions_in_play
from unstable.planning.plan import plan

PLACES = 271  # games in flight on a shared H200 with Qwen3-1.7B
ANSWER = 20  # mean tokens, geometric distribution
TURNS = 8  # per game, of both sides alternating


def requests(versions: int, share: float, chance: random.Random) -> Iterator[int]:
    """Versions that one game in flight requests; 0 is the current one."""
    while True:
        past = chance.randint(1, versions) if chance.random() < share else 0
        first = chance.randrange(2)
        for turn in range(TURNS):
            yield past if (turn + first) % 2 else 0


def waiting_share(
    slots: int, *, versions: int = 32, share: float = 0.41, number: int = PLACES
) -> float:
    """Share of places that wait; the queue passes over a version without a slot, as vLLM does."""
    chance = random.Random(0)
    places = [requests(versions, share, chance) for _ in range(number)]
    queue = deque((place, next(place)) for place in places)
    running: list[tuple[Iterator[int], int]] = []
    waited, steps = 0, 400
    for step in range(steps):
        active = Counter(version for _, version in running)
        left: deque[tuple[Iterator[int], int]] = deque()
        for place, version in queue:
            if active[version] or sum(map(bool, active.values())) < slots:
                active[version] += 1
                running.append((place, version))
            else:
                left.append((place, version))
        ended = [chance.random() < 1 / ANSWER for _ in running]
        waited += len(left) * (step >= steps // 2)
        queue = left
        queue.extend((at, next(at)) for (at, _), end in zip(running, ended, strict=True) if end)
        running = [each for each, end in zip(running, ended, strict=True) if not end]
    return waited / (number * steps / 2)


@every_row("slots, least, most", (8, 0.4, 0.6), (16, 0.1, 0.3), (33, 0, 0))
def test_slot_per_version_leaves_no_place_waiting(slots: int, least: float, most: float) -> None:
    assert least <= waiting_share(slots) <= most


def test_default_pool_slots_leave_few_requests_waiting() -> None:
    assert waiting_share(LEAST_SLOTS) > 0.05 >= waiting_share(versions_in_play(load("default")))


@every_row(
    "model, quantize",
    *(
        [("Qwen/Qwen3-1.7B", "none")]
        + [(f"Qwen/Qwen3-{size}B", bits) for size in (4, 8) for bits in ("none", "8bit", "4bit")]
    ),
)
def test_24_gb_plans_leave_few_requests_waiting(model: str, quantize: str) -> None:
    options = {"model.name": model, "model.quantize": quantize}
    chosen = plan(load("qwen3_24gb", options), [machine_named("4x24gb")], NEEDS)
    games, slots = chosen.games_in_flight, chosen.max_loras
    assert waiting_share(slots, number=games) <= 0.02
    fewer = round(0.6 * slots)  # few slots are superfluous
    if fewer > LEAST_SLOTS:
        assert waiting_share(fewer, number=games) > 0.05


def test_number_of_requested_versions() -> None:
    """Count 32 * (1 - (31 / 32)^n) versions for n past turns, the two newest and one evaluated."""
    config = load("default", {"opponents.draw": {"self": 0.6, "past": 0.4, "fixed": 0.0}})
    assert versions_at_once(config, 0) == 6  # current, stale and evaluated ones
    assert versions_at_once(config, 100) == 19  # 15.04 past ones, rounded up
    assert versions_at_once(config, 10_000) == versions_in_play(config) == 34
    pinned = load("default", {"opponents.pinned": [0, "best"]})
    assert versions_in_play(pinned) == versions_in_play(load("default")) + 2
