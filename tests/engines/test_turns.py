"""Versions take turns in an engine that computes with one at a time."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstable.engines.vllm.turns import VersionTurns

VERSIONS = [None, Path("a"), Path("b")]


class Weights:
    """Weights in place and the number of exchanges, which take `steps` turns of the loop each."""

    def __init__(self, steps: int = 1) -> None:
        self.steps = steps
        self.in_place: Path | None = None
        self.running: list[Path | None] = []
        self.exchanges = 0

    async def put(self, version: Path | None) -> None:
        assert not self.running, "weights are exchanged while requests run"
        self.in_place = None if version is None else Path("half")
        for _ in range(self.steps):
            await asyncio.sleep(0)
        assert not self.running
        self.in_place = version
        self.exchanges += 1


async def request(turns: VersionTurns, weights: Weights, version: Path | None, steps: int) -> None:
    async with turns.of(version):
        weights.running.append(version)
        try:
            for _ in range(steps):
                assert weights.in_place == version
                await asyncio.sleep(0)
        finally:
            weights.running.remove(version)


requests = st.tuples(st.sampled_from(VERSIONS), st.integers(0, 4), st.integers(0, 9), st.booleans())


@given(st.lists(requests, max_size=20), st.integers(0, 3))
async def test_requests_run_under_their_own_version(asked, steps):
    """Requests run under their own version, for every order of arrivals and cancellations."""
    weights = Weights(steps)
    turns = VersionTurns(weights.put)

    async def one(version: Path | None, length: int, begins: int, leaves: bool) -> bool:
        for _ in range(begins):
            await asyncio.sleep(0)
        task = asyncio.create_task(request(turns, weights, version, length))
        if leaves:
            for _ in range(length):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        return task.cancelled()

    async with asyncio.timeout(10):
        left = await asyncio.gather(*(one(*each) for each in asked))
        assert not any(gone for gone, each in zip(left, asked, strict=True) if not each[3])
        for version in VERSIONS:  # turns still work
            await request(turns, weights, version, 1)


async def test_busy_version_yields_its_turn() -> None:
    weights = Weights()
    turns = VersionTurns(weights.put)
    done = asyncio.Event()

    async def forever() -> None:
        while not done.is_set():
            await request(turns, weights, None, 2)

    busy = [asyncio.create_task(forever()) for _ in range(3)]
    async with asyncio.timeout(10):
        for _ in range(5):
            await request(turns, weights, Path("a"), 1)
    assert weights.exchanges >= 5
    done.set()
    await asyncio.gather(*busy)


async def test_requests_of_one_version_share_a_turn() -> None:
    weights = Weights()
    turns = VersionTurns(weights.put)
    versions = [Path("a"), Path("b")] * 20
    await asyncio.gather(*(request(turns, weights, version, 1) for version in versions))
    assert weights.exchanges == 2


async def test_failed_weight_exchange_fails_all_requests() -> None:
    async def put(_: Path | None) -> None:
        raise RuntimeError("no room")

    turns, weights = VersionTurns(put), Weights()
    await request(turns, weights, None, 1)
    asked = [request(turns, weights, version, 1) for version in (Path("a"), Path("b"), None)]
    for found in await asyncio.gather(*asked, return_exceptions=True):
        assert found is None or "no room" in str(found)
    with pytest.raises(RuntimeError, match="no room"):
        await request(turns, weights, None, 1)
