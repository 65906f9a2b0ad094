"""Custom synchronous reward terms run in a process that can be ended without harm."""

import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from tests.helpers.builders import game
from tests.helpers.judged import judged_by
from unstable.config import JudgeConfig, RewardConfig
from unstable.rewards.terms import Rewards
from unstable.runtime import judge as judge_module
from unstable.runtime.judge import terms_worker
from unstable.types import GameFailure, GameResult, Reward, Turn


def told(result: GameResult, turn: Turn) -> float | None:
    """The turn's number; nothing in game 3."""
    return None if result.spec.game_id == 3 else float(turn.index)


def wrong(result: GameResult, turn: Turn) -> float:
    """The turn's number; each game with an odd number fails in its own way."""
    game_id = result.spec.game_id
    if game_id == 1:
        re.match(r"(a+)+b", "a" * 60)
    elif game_id == 3:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(60)
    elif game_id == 5:
        os._exit(3)
    elif game_id == 7:
        raise LookupError("no such word")
    return float(turn.index)


def process(result: GameResult, seat: int) -> float:
    return float(os.getpid())


async def slow(result: GameResult, seat: int) -> float:
    return 0.5


async def judged(
    terms: list[RewardConfig], count: int = 5, judges: Mapping[str, JudgeConfig] | None = None
) -> dict[int, Any]:
    """Return, by game, the rewards of its trained seat or its error."""

    async def played() -> AsyncGenerator[list[GameResult | GameFailure]]:
        for game_id in range(count):
            yield [game(game_id=game_id)]

    known = judges or {}
    judge = terms_worker(terms, known)
    found: dict[int, Any] = {}
    try:
        async for together in Rewards(terms, known, apart=judge.ask).judge(played()):
            for each in together:
                if isinstance(each, GameFailure):
                    found[each.spec.game_id] = each.error
                else:
                    (trajectory,) = each[1]
                    own = [sample.rewards for sample in trajectory.samples]
                    found[each[0].spec.game_id] = trajectory.rewards, own
    finally:
        judge.close()
    return found


def term(name: str, **changes: Any) -> RewardConfig:
    return RewardConfig(term=f"{__name__}:{name}", **changes)


async def test_rewards_equal_those_of_a_single_process() -> None:
    terms = [RewardConfig(), term("told", weight=2.0), term("slow")]
    found = await judged(terms)
    here = Rewards([RewardConfig(), term("told", weight=2.0)])
    for game_id in range(5):
        (trajectory,) = here.trajectories(game(game_id=game_id))
        whole = trajectory.rewards | {terms[2].term: Reward(0.5, 0.5)}
        assert found[game_id] == (whole, [sample.rewards for sample in trajectory.samples])
    assert found[3] == ({"outcome": Reward(1.0, 1.0), terms[2].term: Reward(0.5, 0.5)}, [{}, {}])


async def test_terms_run_in_a_child_process_that_ends_with_its_owner() -> None:
    found = await judged([term("process")], 2)
    pids = set()
    for rewards, _ in found.values():
        pids.add(int(rewards[f"{__name__}:process"].raw))
    (pid,) = pids
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_errors_of_terms_fail_only_their_game(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "GRACE_S", 0.5)
    entry, judge = judged_by(f"{__name__}:wrong", timeout=1.0)
    found = await judged([entry], 9, {"judge": judge})
    for game_id, error in (
        (1, r"TimeoutError: reward term judge exceeded timeout = 1 s"),
        (3, r"WorkerError: the process of reward terms timed out after 1.5 s"),
        (5, r"WorkerError: the process of reward terms exited with exit code 3"),
        (7, r"LookupError: no such word"),
    ):
        assert re.match(error, str(found.pop(game_id)))
    assert sorted(found) == [0, 2, 4, 6, 8]
    assert not any(isinstance(each, str) for each in found.values())
