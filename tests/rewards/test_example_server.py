"""The example of a judge's service, as the page on feedback starts it."""

import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from tests.helpers.builders import game
from unstable.config import RewardConfig
from unstable.rewards.terms import Rewards
from unstable.types import GameFailure, GameResult

SERVER = Path(__file__).parent.parent.parent / "examples" / "judge_server.py"


@pytest.fixture
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SERVER), str(port)])
    try:
        for _ in range(200):
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("judges", ["turn", "seat"])
async def test_it_judges_turns_and_whole_games(url: str, judges: str) -> None:
    rewards = Rewards([RewardConfig(term="http", judges=judges, args={"url": url})])

    async def played() -> AsyncGenerator[list[GameResult | GameFailure]]:
        yield [game(turns=4), game(game_id=1, turns=6)]

    found = [each async for together in rewards.judge(played()) for each in together]
    await rewards.close()
    assert len(found) == 2
    for each in found:
        assert not isinstance(each, GameFailure), each.error
        for trajectory in each[1]:
            given = [sample.rewards for sample in trajectory.samples]
            values = given if judges == "turn" else [trajectory.rewards]
            assert values and all("http" in value for value in values)
