"""Oracles asked over a real socket: answers count, and what goes wrong goes as declared."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.builders import answering, game
from tests.helpers.endpoint import Reply, Server
from tests.helpers.judged import counts, judged
from unstable.config import ConfigError, RewardConfig
from unstable.rewards.oracles.asking import Asking
from unstable.rewards.oracles.base import Call, Oracle, Question, ValueOrError
from unstable.rewards.oracles.cache import Cache
from unstable.rewards.terms import Rewards
from unstable.types import GameFailure, GameResult, Turn


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.replies = [Reply(body=lengths)]
    yield made
    made.close()


def lengths(request: dict[str, Any]) -> dict[str, Any]:
    """Of each item its number of turns."""
    return {"values": [len(item["turns"]) for item in request["items"]]}


def term(server: Server, **changes: Any) -> RewardConfig:
    fields: dict[str, Any] = {"term": "http", "args": {"url": server.url}, "retries": 1}
    return RewardConfig(**fields | changes)


def games(count: int) -> list[GameResult]:
    """Each of another length."""
    return [game(game_id=number, turns=number + 1) for number in range(count)]


async def test_many_are_asked_at_a_time_and_each_gets_its_own(server: Server) -> None:
    rewards = Rewards([term(server, batch=4, weight=0.5)])
    found = await judged(rewards, games(10))
    assert found == {number: (number + 1) / 2 for number in range(10)}
    sizes = [len(body["items"]) for body in server.bodies]
    assert sum(sizes) == 10 and max(sizes) == 4
    assert counts(rewards) == {"asked": 10, "calls": len(sizes)} | {"hits": 0}


async def test_a_turn_is_told_with_what_came_before_and_no_name(server: Server) -> None:
    rewards = Rewards([term(server, judges="turn")])
    await judged(rewards, [game(("main@1", "main@0"), turns=3)])
    items = [item for body in server.bodies for item in body["items"]]
    assert [item["turn"] for item in items] == [0, 2]
    assert [turn["seat"] for turn in items[1]["turns"]] == [0, 1, 0]
    assert "answer" not in items[1]["turns"][1]
    assert "main@" not in json.dumps(items)


NAN = '{"values": [NaN]}'
DEEP = "[" * 15_000
WRONG: dict[str, tuple[Reply, str]] = {
    "refuses": (Reply(500, "no"), "answers 500: 'no'"),
    "hangs up": (Reply(hangs_up=True), "RemoteProtocolError"),
    "stalls": (Reply(body=lengths, wait_s=2.0), "none in timeout = 0.3 s"),
    "no object": (Reply(body=[1.0]), 'sent no {"values": [...]} but [1.0]'),
    "another key": (Reply(body={"scores": [1.0]}), 'sent no {"values": [...]}'),
    "wrong count": (Reply(body={"values": [1.0, 2.0, 3.0]}), "sent 3 values for 1 items"),
    "a word": (Reply(body={"values": ["good"]}), "sent 'good'; a value is a number or null"),
    "a switch": (Reply(body={"values": [True]}), "sent True; a value"),
    "not a number": (Reply(body=NAN), "sent no JSON"),
    "too great": (Reply(body={"values": [10**400]}), "a value is a number or null"),
    "garbage": (Reply(body="<html>502</html>"), "sent no JSON but '<html>502</html>'"),
    "deep": (Reply(body=DEEP), "sent no JSON"),
    "huge": (Reply(body="1" * 30_000), "has more than 20000 bytes"),
    "packed": (
        Reply(body="x", headers={"Content-Encoding": "gzip"}),
        "its reply is packed, which was not asked for",
    ),
    "redirects": (
        Reply(302, headers={"Location": "http://elsewhere.invalid/"}),
        "redirects to 'http://elsewhere.invalid/', which is not followed",
    ),
    "one item": (Reply(body={"values": [{"error": "too long"}]}), "says 'too long'"),
}


def unruly(server: Server, reply: Reply, **changes: Any) -> RewardConfig:
    server.replies = [reply]
    args = {"url": server.url, "max_bytes": 20_000}
    timeout = 0.3 if reply.wait_s else 20.0
    return term(server, args=args, timeout=timeout, batch=1, retries=0, **changes)


@pytest.mark.parametrize(("reply", "why"), WRONG.values(), ids=list(WRONG))
async def test_what_a_service_does_wrong_goes_as_declared(
    server: Server, reply: Reply, why: str
) -> None:
    dropped = await judged(Rewards([unruly(server, reply), RewardConfig()]), [game()])
    assert why in str(dropped[0]) and "\n" not in str(dropped[0])
    zero = Rewards([unruly(server, reply, on_failure="zero"), RewardConfig()])
    assert await judged(zero, [game()]) == {0: 1.0}  # the outcome's
    assert counts(zero)["failures"] == 1


async def test_a_call_that_fails_for_a_while_is_made_again(server: Server) -> None:
    server.replies = [Reply(503), Reply(body="?"), Reply(body=lengths)]
    rewards = Rewards([term(server, retries=2)])
    assert await judged(rewards, [game()]) == {0: 4.0}
    found = counts(rewards)
    assert (found["calls"], found["retried"]) == (3, 2)
    assert "failures" not in found


@pytest.mark.parametrize("status", [302, 400, 401, 404])
async def test_what_another_call_would_not_mend_is_asked_once(server: Server, status: int) -> None:
    server.replies = [Reply(status)]
    await judged(Rewards([term(server, retries=3)]), [game()])
    assert server.asked == 1


async def test_the_last_known_value_of_a_role_stands_in(server: Server) -> None:
    server.replies = [Reply(body={"values": [3.0]}), Reply(400)]
    rewards = Rewards([term(server, on_failure="last", batch=1, at_once=1)])
    assert await judged(rewards, games(3)) == {0: 3.0, 1: 3.0, 2: 3.0}
    other = Rewards([term(server, on_failure="last")])
    assert await judged(other, [game(game_id=5)]) == {5: 0.0}


async def test_one_item_that_fails_costs_no_other(server: Server) -> None:
    def picky(request: dict[str, Any]) -> dict[str, Any]:
        sizes = [len(item["turns"]) for item in request["items"]]
        return {"values": [{"error": "three"} if size == 3 else size for size in sizes]}

    server.replies = [Reply(body=picky)]
    found = await judged(Rewards([term(server)]), games(5))
    assert [number for number, value in found.items() if isinstance(value, str)] == [2]


async def test_half_a_character_is_told_as_it_is(server: Server) -> None:
    odd = game(turns=1)
    odd.turns[0] = answering(odd.turns[0], text="\ud83d?")
    assert await judged(Rewards([term(server)]), [odd]) == {0: 1.0}
    assert server.bodies[0]["items"][0]["turns"][0]["answer"] == "\ud83d?"


async def test_null_is_no_reward(server: Server) -> None:
    server.replies = [Reply(body={"values": [None]})]
    rewards = Rewards([term(server), RewardConfig()])
    assert await judged(rewards, [game()]) == {0: 1.0}


async def test_equal_content_is_asked_once_by_all_processes(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "answers.jsonl"
    first = Rewards([term(server, cache=str(path))])
    same = [game(game_id=number) for number in range(6)]
    assert set((await judged(first, same)).values()) == {4.0}
    assert counts(first) == {"asked": 6, "calls": 1, "hits": 5}
    other = Rewards([term(server, cache=str(path))])
    await judged(other, same)
    assert counts(other) == {"asked": 6, "hits": 6}
    assert server.asked == 1
    another = Rewards([term(server, cache=str(path), args={"url": f"{server.url}/other"})])
    await judged(another, same)
    assert counts(another)["calls"] == 1


def test_a_file_of_answers_survives_a_death_in_a_line(tmp_path: Path) -> None:
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


async def test_a_file_that_cannot_be_written_costs_no_game(server: Server, tmp_path: Path) -> None:
    rewards = Rewards([term(server, cache=str(tmp_path))])
    assert await judged(rewards, [game()]) == {0: 4.0}


async def test_a_key_goes_out_and_is_never_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "a-very-secret-key")
    server.replies = [Reply(400, "you sent a-very-secret-key")]
    args = {"url": server.url, "api_key_env": "JUDGE_KEY"}
    found = await judged(Rewards([term(server, args=args)]), [game()])
    assert "<JUDGE_KEY>" in str(found[0]) and "secret-key" not in str(found[0])


def test_a_service_that_is_not_there_is_refused_in_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"^buffer.rewards.0.args.url = .*: it is silent; start"):
        Rewards([term(server)]).check(lambda url: "it is silent")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    args = {"url": server.url, "api_key_env": "JUDGE_KEY"}
    with pytest.raises(ConfigError, match=r"^buffer.rewards.0.args.api_key_env = 'JUDGE_KEY': not"):
        Rewards([term(server, args=args)]).check(lambda url: None)


async def test_terms_of_one_kind_need_names(server: Server) -> None:
    with pytest.raises(ConfigError, match=r"^buffer.rewards.1.term = 'http' is there twice"):
        Rewards([term(server), term(server)])
    rewards = Rewards([term(server, name="one"), term(server, name="two")])
    assert await judged(rewards, [game()]) == {0: 8.0}


async def test_a_game_that_is_given_up_ends_its_call(server: Server) -> None:
    server.replies = [Reply(body=lengths, wait_s=0.5)]
    rewards = Rewards([term(server)])

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


async def test_a_function_may_judge_many_at_a_time() -> None:
    name = f"{__name__}:whole_games"
    rewards = Rewards([RewardConfig(term=name)])
    assert await judged(rewards, games(4)) == {n: n + 1.0 for n in range(4)}
    assert counts(rewards, name) == {"asked": 4, "calls": 1}
    turns = Rewards([RewardConfig(term=f"{__name__}:of_turns")])
    assert await judged(turns, games(3)) == {0: 0.0, 1: 0.0, 2: 1.0}


async def test_a_function_has_the_same_policy_where_it_fails() -> None:
    config = RewardConfig(term=f"{__name__}:unsteady", args={"seen": []}, on_failure="zero")
    assert await judged(Rewards([config]), [game()]) == {0: 0.0}
    with pytest.raises(ConfigError, match=r"on_failure = 'zero': outcome does not wait"):
        Rewards([RewardConfig(on_failure="zero")])


async def test_a_failure_that_many_games_share_is_as_short_for_each(server: Server) -> None:
    server.replies = [Reply(400, "no")]

    async def played() -> AsyncGenerator[list[GameResult | GameFailure]]:
        yield [*games(20)]

    rewards, found = Rewards([term(server)]), list[GameFailure]()
    async for together in rewards.judge(played()):
        found += [each for each in together if isinstance(each, GameFailure)]
    await rewards.close()
    lengths_of = {len(each.traceback.splitlines()) for each in found}
    assert len(found) == 20 and len(lengths_of) == 1
    assert "_fail" in found[0].traceback  # where it was found


class Echo(Oracle):
    """Answers an item's own number after any time, and notes the batches."""

    def __init__(self, waits: Callable[[int], float], fails: set[int]) -> None:
        super().__init__("echo", "buffer.rewards.0")
        self.waits, self.fails, self.batches = waits, fails, list[list[int]]()

    @property
    def settings(self) -> Any:
        return None

    def questions(self, result: GameResult, game: GameResult, judged: Any) -> list[Question]:
        return [Question(game.spec.game_id, game, judged)]

    async def answer(self, questions: Sequence[Question], call: Call) -> Sequence[ValueOrError]:
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
def test_however_questions_come_each_gets_its_own_answer(
    numbers: list[int],
    waits: list[float],
    fails: set[int],
    at_once: int,
    batch: int,
    cache: str,
) -> None:
    async def ask() -> list[float | None | BaseException]:
        asked = [asking.ask(g, g, 0).value() for g in (game(game_id=n) for n in numbers)]
        return await asyncio.gather(*asked, return_exceptions=True)

    args = {"url": "http://localhost"}
    config = RewardConfig(term="http", args=args, batch=batch, retries=0, cache=cache)
    oracle = Echo(lambda n: waits[n % len(waits)], fails)
    asking = Asking(config, oracle, at_once=at_once, cache=None)
    found = asyncio.run(ask())
    for number, value in zip(numbers, found, strict=True):
        assert str(value) == str(number) if number in fails else value == number
    sent = [number for each in oracle.batches for number in each]
    assert all(len(each) <= batch for each in oracle.batches)
    assert sorted(sent) == sorted(numbers if cache == "none" else set(numbers))
