"""Collector: order, bounds, determinism, `enough`, cancellation and isolation of failures."""

import asyncio
import random
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.collector import Scripted, collector, played, specs
from tests.helpers.models import random_adapter, tiny_model
from tests.helpers.rows import every_row
from unstable.collectors.players.programs import RandomPlayer
from unstable.commands.evaluate import play_evaluation
from unstable.models.adapters import read_adapter, write_adapter
from unstable.types import (
    Adapter,
    GameFailure,
    GameResult,
    PlayerId,
)


class Counting:
    """A bot that takes the cells in order; counts its instances."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self._cell = -1

    def __call__(self, observation: str) -> str:
        self._cell += 1
        return f"[{self._cell}]"


def summary(result: GameResult | GameFailure) -> tuple:
    assert isinstance(result, GameResult)
    actions = [(turn.seat, turn.answer.action, turn.answer.observation) for turn in result.turns]
    return result.spec.game_id, actions, result.outcomes


async def test_games_do_not_depend_on_concurrency():
    delays = random.Random(3)
    at_once = await played(
        collector(Scripted(lambda: delays.randrange(9)), in_flight=16).play(specs(60))
    )
    one_by_one = await played(collector(Scripted(), in_flight=1).play(specs(60)))
    assert [result.spec.game_id for result in one_by_one] == list(range(60))
    assert [result.spec.game_id for result in at_once] != list(range(60))
    assert sorted(map(summary, at_once)) == sorted(map(summary, one_by_one))


async def test_finished_games_are_yielded_in_batches():
    together = [batch async for batch in collector(Scripted(), 16).play_together(specs(64))]
    one_by_one = await played(collector(Scripted(), 16).play(specs(64)))
    assert [summary(r) for batch in together for r in batch] == [*map(summary, one_by_one)]
    assert min(map(len, together)) > 0 and max(map(len, together)) > 1


async def test_calls_share_the_games_in_flight_limit():
    engine = Scripted(lambda: 3)
    shared = collector(engine, in_flight=6)
    plays = [shared.play(specs(20)), shared.play(specs(4, purpose="eval"))]
    finished: list[str] = []

    async def follow(play):
        async for result in play:
            finished.append(result.spec.purpose)
            assert shared.stats()["games_in_flight"] <= 6

    await asyncio.gather(*map(follow, plays))
    assert engine.most_running == 6
    assert finished.count("train") == 20 and finished.count("eval") == 4
    assert finished.index("eval") < 12, "a later call must not wait for an earlier one"
    assert shared.stats()["games"] == 24 and shared.stats()["games_in_flight"] == 0


async def test_evaluation_gets_half_the_slots():
    shared = collector(Scripted(), in_flight=6)
    training = [asyncio.create_task(played(shared.play(specs(20)))) for _ in range(12)]
    await asyncio.sleep(0)
    assert len(await played(shared.play(specs(30, purpose="eval")))) == 30
    beside = shared.stats()["games"] - 30
    assert 15 <= beside <= 60, "about the evaluation's number; 240 with equal calls"
    for task in training:
        task.cancel()
    await asyncio.gather(*training, return_exceptions=True)


async def test_failure_leaves_other_games_unchanged():
    mixed = specs(9)
    mixed[4] = specs(5, players=("bot", "main@0"))[4]
    mixed[6] = specs(7, env="nowhere")[6]
    faulty = collector(Scripted(lambda: 1))
    results = {result.spec.game_id: result for result in await played(faulty.play(mixed))}
    clean = {each.spec.game_id: each for each in await played(collector(Scripted()).play(specs(9)))}
    failures = [game for game, result in results.items() if isinstance(result, GameFailure)]
    assert set(failures) <= {4, 6} and 6 in failures
    for game in set(range(9)) - {4, 6}:
        assert summary(results[game]) == summary(clean[game])
    assert faulty.stats()["failures"] == len(failures)


async def test_failure_has_error_and_traceback():
    games = specs(6, players=("bot", "main@0"))
    results = await played(collector(Scripted()).play(games))
    failure = next(result for result in results if isinstance(result, GameFailure))
    assert failure.error == "RuntimeError: out of patience"
    assert "in __call__" in failure.traceback and failure.spec in games


@every_row("in_flight", 1, 7)
async def test_no_game_starts_once_enough_turns_are_expected(in_flight):
    engine = Scripted(lambda: 2)
    results = await played(collector(engine, in_flight).play(specs(200), enough=60))
    turns = [result.num_trained for result in results]
    assert sum(turns) >= 60
    assert sum(turns) < 75, "games in flight have the mean length of earlier ones"
    games = sorted(result.spec.game_id for result in results)
    assert games == list(range(len(results))), "in order"


async def test_enough_does_not_depend_on_reader_speed():
    runs = []
    for pause in (0, 1, 50):
        plays = collector(Scripted(lambda: 2), 5).play(specs(200), enough=70)
        runs.append([summary(result) for result in await played(plays, pause)])
    assert runs[0] == runs[1] == runs[2]


async def test_partial_group_of_dead_actor_is_completed():
    """Any remainder of a group is completed; else its members would wait in the buffer forever."""
    whole = [
        replace(spec, member=k, seats=tuple(replace(s, group_size=3) for s in spec.seats))
        for k, spec in enumerate(specs(3))
    ]
    assert await played(collector(Scripted()).play(whole, enough=0)) == []
    for left in ([0], [1], [0, 2], [1, 2]):
        results = await played(collector(Scripted()).play([whole[k] for k in left], enough=-5))
        assert sorted(result.spec.member for result in results) == left


async def test_play_ends_when_specs_run_out():
    assert len(await played(collector(Scripted()).play(specs(3), enough=10_000))) == 3
    assert await played(collector(Scripted()).play([])) == []
    assert await played(collector(Scripted()).play(specs(3), enough=0)) == []


async def test_closing_play_cancels_its_games():
    engine = Scripted(lambda: 10_000)
    shared = collector(engine, in_flight=3)
    reader = asyncio.create_task(played(shared.play(specs(50))))
    while engine.running < 3:
        await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (engine.running, engine.cancelled) == (0, 3)
    engine._delay = None
    async with aclosing(shared.play(specs(50))) as plays:
        async for _ in plays:
            break
    assert engine.running == 0 and shared.stats()["games_in_flight"] == 0
    assert len(await played(shared.play(specs(5)))) == 5


async def test_retired_version_is_unloaded_after_its_last_game():
    engine = Scripted(delay=lambda: 3)
    playing = collector(engine, 1)
    await engine.load(random_adapter(tiny_model(), "main@7", seed=0))
    async with aclosing(playing.play(specs(2, players=("main@7", "base")))) as results:
        await anext(results)
        await playing.retire(PlayerId.policy(7))
        assert engine.adapters == ["main@7"]
        async for result in results:
            assert isinstance(result, GameResult)
    assert engine.adapters == []


async def test_concurrent_plays_clear_prefix_cache_once():
    class Slow(Scripted):
        forgot = 0

        async def forget_prefixes(self) -> None:
            for _ in range(20):
                assert not self.asked
                await asyncio.sleep(0)
            self.forgot += 1

    playing = collector(engine := Slow())
    both = await asyncio.gather(played(playing.play(specs(3))), played(playing.play(specs(3))))
    assert all(isinstance(result, GameResult) for results in both for result in results)
    assert engine.forgot == 1


async def test_concurrent_retirements_unload_each_version_once():
    class Slow(Scripted):
        async def unload(self, name) -> None:
            await asyncio.sleep(0)
            self.adapters.remove(name)

    playing = collector(engine := Slow())
    for version in range(4):
        await engine.load(adapter_of(version))
    assert engine.adapters == [f"main@{version}" for version in range(4)]
    await asyncio.gather(*(playing.retire(PlayerId.policy(version)) for version in range(4)))
    assert engine.adapters == []


async def test_players_by_name(tmp_path):
    adapter = random_adapter(tiny_model(), "main@7", seed=0)
    write_adapter(adapter, tmp_path)
    fixed = [{"kind": "checkpoint", "path": str(tmp_path), "name": "warm"}, {"kind": "random"}]
    engine = Scripted()
    playing = collector(engine, opponents={"fixed": fixed})
    await engine.load(read_adapter(tmp_path, "checkpoint:warm"))
    await engine.load(adapter)
    await played(playing.play(specs(1, players=("main@7", "warm"))))
    assert set(engine.asked) == {"main@7", "checkpoint:warm"}
    await played(playing.play(specs(1, players=("base", "base"))))
    assert engine.asked[-1] is None
    results = await played(playing.play(specs(2, players=("random", "expert"), env="TicTacToe-v0")))
    assert all(isinstance(result, GameResult) for result in results)
    await playing.retire(PlayerId.policy(7))
    assert engine.adapters == ["checkpoint:warm"]
    assert playing.stats()["requests"] == len(engine.asked)


async def test_python_players_are_per_game_and_others_shared(monkeypatch):
    made = []

    def make(cls, opponent, game, seat, model):
        made.append((game.key, seat.temperature))
        return cls()

    monkeypatch.setattr(RandomPlayer, "make", classmethod(make))
    monkeypatch.setattr(Counting, "made", 0)
    fixed = [{"kind": "python", "target": f"{__name__}:Counting", "name": "bot"}]
    ours = collector(Scripted(), opponents={"fixed": fixed, "draw": {"fixed": 1}})
    for _ in range(2):
        results = await played(ours.play(specs(3, ("bot", "random"), "TicTacToe-v0", "eval")))
        assert [result.turns[0].answer.action for result in results] == ["[0]"] * 3
    assert Counting.made == 6
    assert made == [("TicTacToe-v0", 1.0)]
    await played(ours.play(specs(1, ("bot", "random"), "TicTacToe-v0", "train")))
    assert made == [("TicTacToe-v0", 1.0)] * 2


async def test_policy_refresh_by_turn_uses_newest_version():
    engine = Scripted(delay=lambda: 3)
    ours = collector(engine, actors={"games_in_flight": 4, "policy_refresh": "turn"})
    players = ("main@0", "main@0")
    trained, frozen = specs(1, players)[0], specs(1, players, purpose="eval")[0]

    async def publish(version: int) -> None:
        await engine.load(adapter_of(version))
        ours.announce(PlayerId.policy(version))

    async def publish_in_between() -> None:
        for version in (1, 2):
            while len(engine.asked) < 3 * version:
                await asyncio.sleep(0)
            await publish(version)

    await publish(0)
    publishing = asyncio.create_task(publish_in_between())
    (result,), (judged,) = await asyncio.gather(
        played(ours.play([trained])), played(ours.play([frozen]))
    )
    await publishing
    versions: list[Any] = [turn.answer.sampled.version for turn in result.turns]
    assert versions == sorted(versions)
    assert len(set(versions)) > 1
    assert {turn.player for turn in result.turns} == {PlayerId.policy(0)}  # the rated player
    assert {turn.answer.sampled.version for turn in judged.turns} == {
        0
    }  # evaluation uses one version
    named = [f"main@{turn.answer.sampled.version}" for turn in [*result.turns, *judged.turns]]
    assert sorted(map(str, engine.asked)) == sorted(named)


async def test_version_in_use_by_a_turn_is_not_unloaded():
    engine = Scripted(delay=lambda: 50)
    ours = collector(engine, actors={"games_in_flight": 4, "policy_refresh": "turn"})
    await engine.load(adapter_of(1))
    ours.announce(PlayerId.policy(1))
    playing = asyncio.create_task(played(ours.play(specs(1))))
    while not engine.running:
        await asyncio.sleep(0)
    await engine.load(adapter_of(2))
    ours.announce(PlayerId.policy(2))
    await ours.retire(PlayerId.policy(1))
    assert "main@1" in engine.adapters
    await playing
    assert engine.adapters == ["main@2"]


def adapter_of(version: int) -> Adapter:
    return Adapter(name=PlayerId.policy(version).name, weights=b"", config={})


async def test_evaluation_of_which_games_may_fail_has_the_others() -> None:
    """The bot fails when the total is 5."""
    actors: list[Any] = [collector(Scripted())]
    specs_of = specs(12, ("main@0", "bot")) + [
        replace(each, game_id=12 + each.game_id) for each in specs(3, ("main@0", "main@0"))
    ]
    with pytest.raises(RuntimeError, match="of 15 games failed; first error: .*out of"):
        await play_evaluation(actors, specs_of)
    found = await play_evaluation(actors, specs_of, may_fail=True)
    assert {12, 13, 14} <= {each.spec.game_id for each in found}
    assert len(found) < 15
    with pytest.raises(RuntimeError, match="games failed"):
        lost = [each for each in specs_of if each.game_id not in {f.spec.game_id for f in found}]
        await play_evaluation(actors, lost, may_fail=True)
