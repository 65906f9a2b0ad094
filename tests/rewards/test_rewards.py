"""Reward terms add up, each kept raw and weighted; they may wait, and fail at a game's cost."""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from tests.helpers.builders import completion, game, sampled, turn
from tests.helpers.judged import judged_by, rewards_of
from tests.helpers.mistakes import line_of, refused
from tests.helpers.rows import every_row
from unstable.config import RewardConfig, load
from unstable.records.files import json_line
from unstable.rewards.built_in import BUILT_IN
from unstable.rewards.terms import Rewards
from unstable.types import Completion, GameFailure, GameResult, Reward, Segment, Turn


def first_turn_bonus(result: GameResult, turn: Turn, size: float = 1.0) -> float | None:
    return size if turn.index == 0 else None


def test_rewards_are_stored_raw_and_weighted() -> None:
    rewards = Rewards(
        [
            RewardConfig(term="outcome", weight=2.0),
            RewardConfig(term="format", weight=0.5),
            RewardConfig(term="invalid_move", weight=-1.0),
            RewardConfig(term="length", weight=-0.25),
        ]
    )
    (trajectory,) = rewards.trajectories(game(outcomes=(-1.0, 0.0), turns=3, forfeit=0))
    legal, refused = trajectory.samples
    assert trajectory.rewards == {"outcome": Reward(-1.0, -2.0)}
    assert legal.rewards == {
        "format": Reward(1.0, 0.5),
        "invalid_move": Reward(0.0, 0.0),
        "length": Reward(2.0, -0.5),
    }
    assert legal.reward == 0.0
    assert refused.reward == -1.0
    assert trajectory.reward == -2.5
    assert (trajectory.outcome, trajectory.forfeit) == (-1.0, True)


@every_row(
    "term, args, expected",
    ("length", {}, [0, 5, 7, 12]),
    ("length", {"free": 6}, [0, 0, 1, 6]),
    ("length", {"of": "thought"}, [0, 3, 4, 9]),
    ("length", {"of": "action", "free": 2}, [0, 0, 1, 1]),
    ("overlong", {"most": 10, "buffer": 4}, [0, 0, -0.25, -1]),
    ("overlong", {"most": 9, "buffer": 8}, [0, -0.5, -0.75, -1]),
    ("overlong", {"most": 9, "buffer": 9, "of": "thought"}, [0, -3 / 9, -4 / 9, -1]),
)
def test_terms_of_length(term: str, args: dict[str, Any], expected: Sequence[float]) -> None:
    """Terms of length count four turns: a program's, and answers of 5, 7 and 12 sampled tokens.

    Thoughts have 3, 4 and 9 of them. The last was cut short: inserted tokens do not count.
    """
    inserted = Segment(token_ids=[7] * 5, scored=False)
    made = [
        None,
        replace(sampled(), segments=(_answer(5),), thought=3),
        replace(sampled(), segments=(_answer(7),), thought=4),
        replace(sampled(), segments=(_answer(9), inserted, _answer(3)), thought=9),
    ]
    turns = [turn(index, 0, "main@1", sampled=each) for index, each in enumerate(made)]
    config = RewardConfig(term=term, args=args)
    assert [BUILT_IN[term](game(), t, **config.args) for t in turns] == pytest.approx(expected)


def _answer(count: int) -> Completion:
    return completion(token_ids=[5] * count, logprobs=[-1.0] * count)


@every_row(
    "term, args, line",
    ("length", {"of": "though"}, "args.of"),
    ("length", {"most": 3}, "args: unknown key 'most'"),
    ("overlong", {"most": 3}, "args.buffer"),
    ("overlong", {"most": 3, "buffer": 4}, "buffer = 4: greater than most = 3"),
)
def test_invalid_args_are_named(term: str, args: dict[str, Any], line: str) -> None:
    said = line_of(load, "tiny", {"buffer.rewards": [{"term": term, "args": args}]})
    assert said.startswith("buffer.rewards.0.args") and line in said


def test_terms_skip_turns_and_untrained_seats() -> None:
    term = f"{__name__}:first_turn_bonus"
    rewards = Rewards([RewardConfig(term=term, weight=3.0, args={"size": 2.0})])
    (trajectory,) = rewards.trajectories(game())
    assert [sample.rewards for sample in trajectory.samples] == [{term: Reward(2.0, 6.0)}, {}]
    assert [sample.reward for sample in trajectory.samples] == [6.0, 0]
    rewards = Rewards([RewardConfig()])
    assert len(rewards.trajectories(game(("main@1", "main@1")))) == 2
    assert len(rewards.trajectories(game(("main@1", "main@0")))) == 1
    assert rewards.trajectories(game(("random", "main@0"), turns=1)) == []


def test_invalid_terms_and_values_are_rejected() -> None:
    wrong = [RewardConfig(term="outcome", args={"foo": 1})]
    refused(r"^buffer.rewards.0.term = 'outcome' with args = .*'foo'", Rewards, wrong)
    refused("not callable", Rewards, [RewardConfig(term=f"{__name__}:__name__")])
    with pytest.raises(ValueError, match="reward term outcome: invalid value nan"):
        Rewards([RewardConfig()]).trajectories(game(outcomes=(float("nan"), 0.0)))
    with pytest.raises(ValueError, match=r"invalid value 10.0 \(float\) with weight 1e\+308"):
        Rewards([RewardConfig(weight=1e308)]).trajectories(game(outcomes=(10.0, 0.0)))


GIVEN: Any = None
"""Value that the term `given` returns."""


def given(result: GameResult, turn: Turn) -> Any:
    return GIVEN


@every_row(
    "value, number",
    *((np.float32(1.5), 1.5), (np.int64(2), 2.0), (np.array([0.5]), 0.5), (True, 1.0)),
    *((torch.tensor(3.0), 3.0), ("5", None), ([1.0], None), (torch.ones(2), None), ({}, None)),
)
def test_scalar_values_become_floats(
    value: Any, number: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.GIVEN", value)
    rewards = Rewards([RewardConfig(term=f"{__name__}:given", name="mine", weight=2.0)])
    if number is None:
        with pytest.raises(ValueError, match=r"^reward term mine: invalid value .* with weight 2$"):
            rewards.trajectories(game())
        return
    (trajectory,) = rewards.trajectories(game())
    found = trajectory.samples[0].rewards["mine"]
    assert found == Reward(number, 2 * number)
    assert json.loads(json_line(found)) == {"format": 2, "raw": number, "weighted": 2 * number}


@every_row(
    "term, message",
    ("outcom", "did you mean 'outcome'?"),
    ("no_such_module:f", "cannot import no_such_module"),
    (f"{__name__}:first_turn", "did you mean 'first_turn_bonus'?"),
)
def test_unknown_term_is_rejected(term: str, message: str) -> None:
    said = line_of(Rewards, [RewardConfig(term=term)])
    assert said.startswith("buffer.rewards.0.term = ") and message in said


class Endpoint:
    """An endpoint that judges all games, and records how many requests are in flight at most."""

    def __init__(self) -> None:
        self.asked = self.most = 0

    async def __call__(self, result: GameResult, seat: int, seconds: float = 0.01) -> float:
        self.asked += 1
        self.most = max(self.most, self.asked)
        try:
            await asyncio.sleep(seconds if result.spec.game_id else 1.0)
            return float(result.spec.game_id)
        finally:
            self.asked -= 1


endpoint = Endpoint()


async def played(count: int) -> AsyncGenerator[list[GameResult | GameFailure]]:
    for game_id in range(count):
        yield [game(game_id=game_id)]


async def judged(rewards: Rewards, count: int = 6) -> Sequence[object]:
    """List ids of games in the order of their judgement, with an error for each failed game."""
    return [
        each.error if isinstance(each, GameFailure) else each[0].spec.game_id
        async for together in rewards.judge(played(count))
        for each in together
    ]


async def test_async_terms_run_concurrently_up_to_at_once() -> None:
    rewards = rewards_of(judged_by(f"{__name__}:endpoint", at_once=3))
    endpoint.most = 0
    found = [each async for together in rewards.judge(played(9)) for each in together]
    assert endpoint.most == 3
    games = {}
    for each in found:
        assert not isinstance(each, GameFailure)
        result, (trajectory,) = each
        games[result.spec.game_id] = trajectory.reward
    assert games == {game_id: float(game_id) for game_id in range(9)}
    assert list(games)[-1] == 0  # the slow game delays no other


async def test_judged_games_arrive_while_play_continues() -> None:
    """Judged games arrive while play continues, because an actor may play without end."""
    rewards = Rewards([RewardConfig(term=f"{__name__}:endpoint")])
    ends = asyncio.Event()

    async def one_and_no_more() -> AsyncGenerator[list[GameResult | GameFailure]]:
        yield [game(game_id=1), game(game_id=2)]
        await ends.wait()

    found = []
    async with asyncio.timeout(20):
        async for together in rewards.judge(one_and_no_more()):
            found += [each[0].spec.game_id for each in together if isinstance(each, tuple)]
            if len(found) == 2:
                ends.set()
    assert sorted(found) == [1, 2]


async def test_at_once_is_divided_among_processes() -> None:
    own, judge = judged_by(f"{__name__}:endpoint", at_once=7)
    for among, most in ((1, 7), (3, 2), (20, 1)):
        rewards = Rewards([own], {"judge": judge}, among=among)
        endpoint.most = 0
        assert len(await judged(rewards, 9)) == 9
        assert endpoint.most == most


async def slow_for_one(result: GameResult, turn: Turn) -> float:
    await asyncio.sleep(60 if result.spec.game_id == 1 else 0)
    return 0.0


@pytest.mark.fault("a reward term hangs")
async def test_async_term_timeout_fails_its_game() -> None:
    rewards = rewards_of(judged_by(f"{__name__}:slow_for_one", timeout=1.0))
    found = await judged(rewards, 3)
    assert found[:2] == [0, 2]
    assert "reward term judge: no reply within timeout = 1 s" in str(found[2])


def never_ends(result: GameResult, turn: Turn, how: str) -> float:
    while result.spec.game_id == 1:
        try:
            if how == "asleep":
                time.sleep(60)
            elif how == "in C":
                re.match(r"(a+)+b", "a" * 60)
        except Exception:  # as a careless term may do
            pass
    return 0.0


@pytest.mark.parametrize("how", ["in Python", "asleep", "in C"])
@pytest.mark.fault("a reward term hangs")
async def test_plain_term_timeout_fails_its_game(how: str) -> None:
    term = judged_by(f"{__name__}:never_ends", timeout=1.0, args={"how": how})
    before = signal.getsignal(signal.SIGALRM)
    found = await judged(rewards_of(term, RewardConfig()), 3)
    assert found[0] == 0 and found[2] == 2
    assert str(found[1]).startswith("TimeoutError: reward term judge exceeded timeout = 1 s")
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def raises(result: GameResult, turn: Turn, error: str) -> float:
    if result.spec.game_id == 1:
        raise {"exit": SystemExit(3), "value": ValueError("no such word")}[error]
    return 1.0


async def raises_later(result: GameResult, turn: Turn, error: str) -> float:
    await asyncio.sleep(0)
    if error == "cancelled" and result.spec.game_id == 1:
        raise asyncio.CancelledError
    return raises(result, turn, error)


@pytest.mark.parametrize(
    "term, error, message",
    [
        ("raises", "value", "ValueError: no such word"),
        ("raises", "exit", "SystemExit: 3"),
        ("raises_later", "value", "ValueError: no such word"),
        ("raises_later", "exit", "SystemExit(3)"),
        ("raises_later", "cancelled", "CancelledError()"),
    ],
)
@pytest.mark.fault("an env, bot or reward term raises or exits")
async def test_exception_of_term_fails_only_its_game(term: str, error: str, message: str) -> None:
    rewards = Rewards([RewardConfig(term=f"{__name__}:{term}", args={"error": error})])
    found = await judged(rewards, 3)
    assert [each for each in found if isinstance(each, int)] == [0, 2]
    (failed,) = [each for each in found if isinstance(each, str)]
    assert message in failed


async def test_cancellation_cancels_pending_terms() -> None:
    rewards = Rewards([RewardConfig(term=f"{__name__}:endpoint", args={"seconds": 60})])
    task = asyncio.create_task(judged(rewards))
    while not endpoint.asked:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.01)
    assert endpoint.asked == 0
