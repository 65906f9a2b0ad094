"""Oracles asked over a real socket: answers count, and what goes wrong goes as declared."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.builders import game
from tests.helpers.endpoint import Reply, Server
from tests.helpers.judged import SEATS, TURNS, Entry, counts, ended, judged, judged_by, rewards_of
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.config import ConfigError, JudgeConfig, RewardConfig
from unstable.rewards.oracles.asking import Asking
from unstable.rewards.oracles.base import Oracle, OracleCaller, OracleQuestion, ValueOrError
from unstable.rewards.oracles.cache import Cache
from unstable.types import GameFailure, GameResult, Turn


@pytest.fixture
def server(server: Server) -> Server:
    server.replies = [Reply(body=lengths)]
    return server


def lengths(request: dict[str, Any]) -> dict[str, Any]:
    """Return the number of turns of each item."""
    return {"values": [len(item["turns"]) for item in request["items"]]}


def term(server: Server, kind: str = SEATS, **changes: Any) -> Entry:
    fields: dict[str, Any] = {"args": {"url": server.url}, "retries": 1, "cache": "memory"}
    return judged_by(kind, **fields | changes)


def games(count: int) -> list[GameResult]:
    """Return games of different lengths."""
    return [game(game_id=number, turns=number + 1) for number in range(count)]


async def test_batched_questions_get_their_own_answers(server: Server) -> None:
    rewards = rewards_of(term(server, batch=4, weight=0.5))
    found = await judged(rewards, games(10))
    assert found == {number: (number + 1) / 2 for number in range(10)}
    sizes = [len(body["items"]) for body in server.bodies]
    assert sum(sizes) == 10 and max(sizes) == 4
    assert counts(rewards) == {"asked": 10, "calls": len(sizes)} | {"hits": 0}


async def test_item_has_earlier_turns_without_player_names(server: Server) -> None:
    await judged(rewards_of(term(server, TURNS)), [game(("main@1", "main@0"), turns=3)])
    items = [item for body in server.bodies for item in body["items"]]
    assert [item["turn"] for item in items] == [0, 2]
    assert [turn["seat"] for turn in items[1]["turns"]] == [0, 1, 0]
    assert "answer" not in items[1]["turns"][1]
    assert "main@" not in json.dumps(items)


WRONG: dict[str, tuple[Reply, str]] = {
    "refuses": (Reply(500, "no"), "500 Internal Server Error"),
    "stalls": (Reply(body=lengths, wait_s=2.0), "no reply within timeout = 0.3 s"),
    "wrong count": (Reply(body={"values": [1.0, 2.0, 3.0]}), "3 values for 1 items"),
    "no list": (Reply(body={"values": 1.0}), "returned a float; return a list of numbers"),
    "a word": (Reply(body={"values": ["good"]}), "reward term judge: invalid value good"),
    "nan": (Reply(body={"values": [float("nan")]}), "reward term judge: invalid value nan"),
    "too great": (Reply(body={"values": [10**400]}), "reward term judge: invalid value 1"),
}


def unruly(server: Server, reply: Reply, **changes: Any) -> Entry:
    server.replies = [reply]
    return term(server, timeout=0.3 if reply.wait_s else 20.0, batch=1, retries=0, **changes)


@pytest.mark.parametrize(("reply", "why"), WRONG.values(), ids=list(WRONG))
async def test_service_errors_follow_on_failure(server: Server, reply: Reply, why: str) -> None:
    dropped = await judged(rewards_of(unruly(server, reply), RewardConfig()), [game()])
    assert why in str(dropped[0]) and "\n" not in str(dropped[0])
    zero = rewards_of(unruly(server, reply, on_failure="zero"), RewardConfig())
    assert await judged(zero, [game()]) == {0: 1.0}  # the outcome's value
    assert counts(zero)["failures"] == 1


@pytest.mark.fault("an endpoint fails or is busy")
async def test_transient_errors_are_retried(server: Server) -> None:
    server.replies = [Reply(503), Reply(body="?"), Reply(body=lengths)]
    rewards = rewards_of(term(server, retries=2))
    assert await judged(rewards, [game()]) == {0: 4.0}
    found = counts(rewards)
    assert (found["calls"], found["retried"]) == (3, 2)
    assert "failures" not in found


async def test_on_failure_last_reuses_last_value(server: Server) -> None:
    server.replies = [Reply(body={"values": [3.0]}), Reply(400)]
    rewards = rewards_of(term(server, on_failure="last", batch=1, at_once=1))
    assert await judged(rewards, games(3)) == {0: 3.0, 1: 3.0, 2: 3.0}
    other = rewards_of(term(server, on_failure="last"))
    assert await judged(other, [game(game_id=5)]) == {5: 0.0}


async def some_fail(results: Sequence[GameResult], seats: Sequence[int]) -> list[Any]:
    lengths = [len(result.turns) for result in results]
    return [OSError("three") if length == 3 else length for length in lengths]


async def test_null_gives_no_reward_and_errors_stay_per_item(server: Server) -> None:
    found = await judged(rewards_of(RewardConfig(term=f"{__name__}:some_fail")), games(5))
    assert [number for number, value in found.items() if isinstance(value, str)] == [2]
    server.replies = [Reply(body={"values": [None]})]
    assert await judged(rewards_of(term(server), RewardConfig()), [game()]) == {0: 1.0}


async def test_equal_questions_are_sent_once(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "answers.jsonl"
    first = rewards_of(term(server, cache=str(path)))
    same = [game(game_id=number) for number in range(6)]
    assert set((await judged(first, same)).values()) == {4.0}
    assert counts(first) == {"asked": 6, "calls": 1, "hits": 5}
    other = rewards_of(term(server, cache=str(path)))
    await judged(other, same)
    assert counts(other) == {"asked": 6, "hits": 6}
    assert server.asked == 1
    another = rewards_of(term(server, cache=str(path), args={"url": f"{server.url}/other"}))
    await judged(another, same)
    assert counts(another)["calls"] == 1


def test_cache_file_survives_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    one, other = Cache(path), Cache(path)
    one.add({"a": 1.0})
    with path.open("ab") as file:
        file.write(b'{"key": "b", "val')
    other.add({"c": None})
    one.look()
    found = Cache(path)
    found.look()
    for cache in (one, found):
        assert ("a" in cache, "b" in cache, "c" in cache) == (True, False, True)
        assert (cache["a"], cache["c"]) == (1.0, None)
    path.write_bytes(
        b'{"key": "d", "value": NaN}\n[]\n{"key": 1, "value": 1}\n{"key": "e"}\n\xff\n'
    )
    hostile = Cache(path)
    hostile.look()
    assert not any(key in hostile for key in ("d", "e"))


async def test_unwritable_cache_fails_no_game(server: Server, tmp_path: Path) -> None:
    rewards = rewards_of(term(server, cache=str(tmp_path)))
    assert await judged(rewards, [game()]) == {0: 4.0}


async def test_terms_of_one_judge_need_distinct_names(server: Server) -> None:
    with pytest.raises(ConfigError, match=r"^buffer.rewards.1.term = 'judge': duplicate term"):
        rewards_of(term(server), term(server))
    rewards = rewards_of(term(server, name="one"), term(server, name="two"))
    assert await judged(rewards, [game()]) == {0: 8.0}


async def test_canceled_game_cancels_its_call(server: Server) -> None:
    server.replies = [Reply(body=lengths, wait_s=0.5)]
    rewards = rewards_of(term(server))

    async def played() -> AsyncGenerator[list[GameResult | GameFailure]]:
        yield [game()]
        await asyncio.sleep(60)

    stream = rewards.judge(played())
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await stream.aclose()
    began = time.monotonic()
    await rewards.close()
    assert time.monotonic() - began < 0.3
    assert len(asyncio.all_tasks()) == 1


async def whole_games(results: Sequence[GameResult], seats: Sequence[int]) -> list[float]:
    await asyncio.sleep(0)
    return [float(len(result.turns)) for result in results]


async def of_turns(results: Sequence[GameResult], turns: Sequence[Turn]) -> list[float]:
    return [float(turn.index) for turn in turns]


async def unsteady(result: GameResult, seat: int, seen: list[int]) -> float:
    raise OSError("down")


async def test_function_judges_batches_and_follows_on_failure() -> None:
    name = f"{__name__}:whole_games"
    rewards = rewards_of(RewardConfig(term=name))
    assert await judged(rewards, games(4)) == {n: n + 1.0 for n in range(4)}
    assert counts(rewards, name) == {"asked": 4, "calls": 1}
    turns = rewards_of(RewardConfig(term=f"{__name__}:of_turns"))
    assert await judged(turns, games(3)) == {0: 0.0, 1: 0.0, 2: 1.0}
    entry = judged_by(f"{__name__}:unsteady", args={"seen": []}, on_failure="zero")
    assert await judged(rewards_of(entry), [game()]) == {0: 0.0}


def plain(result: GameResult, seat: int) -> float:
    return 0.0


@every_row(
    "entry, line",
    (
        judged_by(f"{__name__}:plain", on_failure="zero"),
        r"judges.judge.on_failure = 'zero': unsupported for .*:plain, which is not async",
    ),
    (judged_by("lm"), r"judges.judge.kind = 'lm': unknown kind of judge; did you mean 'llm'"),
    (judged_by(f"{__name__}:plain", term="expert"), r"judges.expert: conflicts with the built-in"),
    (
        (RewardConfig(term="judge", args={"a": 1}), judged_by(f"{__name__}:plain")[1]),
        r"buffer.rewards.0.args = {'a': 1}: unsupported for a judge; set judges.judge.args",
    ),
    (
        judged_by(f"{__name__}:plain", judged="turn"),
        r"buffer.rewards.0.judged = 'turn': conflicts with the function, whose second argument",
    ),
    (RewardConfig(term="llm"), r"buffer.rewards.0.term = 'llm': unknown reward term; use one of "),
)
def test_invalid_judges_are_rejected(entry: Entry, line: str) -> None:
    refused(f"^{line}", rewards_of, entry)


async def test_shared_failure_has_same_traceback_in_each_game(server: Server) -> None:
    server.replies = [Reply(400, "no")]
    rewards, found = rewards_of(term(server)), list[GameFailure]()
    async for together in rewards.judge(ended(*games(20))):
        found += [each for each in together if isinstance(each, GameFailure)]
    await rewards.close()
    lengths_of = {len(each.traceback.splitlines()) for each in found}
    assert len(found) == 20 and len(lengths_of) == 1
    assert "raise_for_status" in found[0].traceback  # the original traceback


class Echo(Oracle):
    """Oracle that answers an item's number after a delay, and records the batches."""

    def __init__(self, waits: Callable[[int], float], fails: set[int]) -> None:
        super().__init__("echo", "buffer.rewards.0")
        self.waits, self.fails, self.batches = waits, fails, list[list[int]]()

    @property
    def settings(self) -> Any:
        return None

    def questions(self, result: GameResult, game: GameResult, judged: Any) -> list[OracleQuestion]:
        return [OracleQuestion(game.spec.game_id, game, judged)]

    async def answer(
        self, questions: Sequence[OracleQuestion], call: OracleCaller
    ) -> Sequence[ValueOrError]:
        asked = [question.content for question in questions]
        self.batches.append(asked)
        await call(lambda: asyncio.sleep(self.waits(asked[0])))
        return [OSError(str(n)) if n in self.fails else float(n) for n in asked]


@settings(max_examples=40, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 12), max_size=30),
    waits=st.lists(st.sampled_from([0.0, 0.001, 0.003]), min_size=1),
    fails=st.sets(st.integers(0, 12)),
    at_once=st.integers(1, 4),
    batch=st.integers(1, 5),
    cache=st.sampled_from(["none", "memory"]),
)
def test_any_batching_gives_each_question_its_answer(
    numbers: list[int], waits: list[float], fails: set[int], at_once: int, batch: int, cache: str
) -> None:
    async def ask() -> list[float | None | BaseException]:
        asked = [asking.ask(g, g, 0).value() for g in (game(game_id=n) for n in numbers)]
        return await asyncio.gather(*asked, return_exceptions=True)

    config = JudgeConfig(kind="llm", args={"model": "m"}, batch=batch, retries=0, cache=cache)
    oracle = Echo(lambda n: waits[n % len(waits)], fails)
    asking = Asking(config, oracle, at_once=at_once, cache=None)
    found = asyncio.run(ask())
    for number, value in zip(numbers, found, strict=True):
        assert str(value) == str(number) if number in fails else value == number
    sent = [number for each in oracle.batches for number in each]
    assert all(len(each) <= batch for each in oracle.batches)
    assert sorted(sent) == sorted(numbers if cache == "none" else set(numbers))
