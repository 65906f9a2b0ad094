"""The loop on real objects of this process: tiny model, real games, no Ray."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import textarena

from tests.helpers.builders import game, packed
from tests.helpers.loop import Begin, lines, make_context, played
from tests.helpers.rows import every_row
from unstable.config import RunConfig, parse
from unstable.loop.context import distribute, sleeping
from unstable.loop.evaluating import evaluate
from unstable.loop.train import retire_unused, train
from unstable.models.base import load_tokenizer
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.rewards.terms import Rewards
from unstable.runtime.local import LocalActor, LocalLearner
from unstable.types import (
    GameFailure,
    GameResult,
    GameSpec,
    PackedBatch,
    PlayerId,
    SeatSpec,
    Update,
)


def losses(folder: RunFolder) -> list[float | None]:
    return [row.get("learn/loss") for row in read_rows(folder.metrics)]


async def test_run_trains_and_writes_its_files(begin: Begin) -> None:
    context = begin()
    assert await train(context) == "all updates made"
    folder = context.folder
    assert [row["version"] for row in read_rows(folder.metrics)] == [0, 1, 2, 3]
    assert all(loss is not None for loss in losses(folder)[1:])
    for update in (1, 2, 3):
        samples = lines(folder.samples(update))
        assert len(samples) >= 16
        assert all(sample["staleness"] <= 4 for sample in samples)
    assert len(played(folder, "eval")) == 3 * 4  # before, after update 2, after the last
    players = {row.player for row in context.registry.ratings()}
    assert {PlayerId.policy(0), PlayerId.policy(3), PlayerId("random")} <= players
    # Adapters of opponents stay; the newest two keep what a resume needs.
    assert folder.versions() == [0, 1, 2, 3]
    whole = [v for v in folder.versions() if len(list(folder.checkpoint(v).iterdir())) > 2]
    assert whole == [2, 3]


async def test_version_0_survives_pruning(begin: Begin, tmp_path: Path) -> None:
    context = begin(
        opponents={"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": [], "pool_size": 1},
        tracking={"run_dir": str(tmp_path / "run"), "dashboard": "off", "keep_checkpoints": 1},
        loop={"mode": "sync", "steps": 5},
    )
    await train(context)
    versions = context.folder.versions()
    assert (versions[0], versions[-1]) == (0, 5)
    assert 1 not in versions
    assert {p.name for p in context.folder.checkpoint(0).iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


async def test_keep_every_keeps_every_second_version(begin: Begin) -> None:
    context = begin(
        opponents={"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": [], "pool_size": 1},
        tracking={"dashboard": "off", "keep_checkpoints": 1, "keep_every": 2},
        loop={"mode": "sync", "steps": 0},
    )
    folder = context.folder
    for version in range(6):
        for name in ("adapter_config.json", "adapter_model.safetensors", "learner.pt"):
            folder.checkpoint(version).mkdir(parents=True, exist_ok=True)
            (folder.checkpoint(version) / name).touch()
        context.registry.announce(context.player(version))
    await retire_unused(context)
    assert folder.versions() == [0, 2, 3, 4, 5], "3 was met by a kept checkpoint's version"
    assert not (folder.checkpoint(4) / "learner.pt").exists()
    context.tracker.close()


async def test_versions_of_unfinished_games_stay_on_actors(begin: Begin) -> None:
    """An actor that restarts, another one or a resumed run may have to play these games again."""
    context = begin(opponents={"pool_size": 1}, loop={"mode": "async", "steps": 9})
    for actor in context.actors:
        await cast(Any, actor).close()
    retired: list[PlayerId] = []

    async def retire(version: PlayerId) -> None:
        retired.append(version)

    context.actors[:] = [cast(Any, SimpleNamespace(retire=retire))]
    versions = [context.player(number) for number in range(6)]
    context.versions.published = set(versions)
    for version in versions:
        context.registry.announce(version)
    seats = tuple(SeatSpec(player=each, temperature=1.0) for each in (versions[3], versions[1]))
    seven = GameSpec(game_id=7, purpose="train", env="TicTacToe-v0", seed=0, seats=seats)
    context.in_flight[7] = seven
    await retire_unused(context)
    assert versions[0] in retired and not {versions[1], versions[3]} & set(retired)
    del context.in_flight[7]
    await retire_unused(context)
    assert {versions[1], versions[3]} <= set(retired)
    context.tracker.close()


async def test_trained_tokens_equal_sampled_tokens(begin: Begin) -> None:
    """Invariant 1: ids and logprobs travel from the engine to the loss unchanged."""
    context = begin()
    await train(context)
    turns = {
        (game["game"], index): turn
        for game in played(context.folder)
        for index, turn in enumerate(game["turns"])
    }
    tokenizer = load_tokenizer(context.config.model)
    trained = [sample for update in (1, 2, 3) for sample in lines(context.folder.samples(update))]
    assert trained
    for sample in trained:
        turn = turns[sample["game"], sample["turn"]]
        assert sample["sampled"] == turn["sampled"]
        assert turn["seat"] == sample["seat"]
        prompt = str(tokenizer.decode(turn["sampled"]["prompt_ids"]))
        assert prompt.endswith("<|assistant|>")
        assert turn["observation"] in prompt
        (segment,) = turn["sampled"]["segments"]
        assert len(segment["logprobs"]) == len(segment["token_ids"])


async def test_sync_runs_are_bitwise_reproducible(tiny_folder: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        context = make_context(tiny_folder, tmp_path / name, num_actors=2)
        await train(context)
        runs.append(context.folder)
    one, two = runs
    assert losses(one) == losses(two)
    for purpose in ("train", "eval"):
        games = [{g["game"]: g for g in played(folder, purpose)} for folder in runs]
        assert games[0] == games[1]
    weights = [(f.checkpoint(3) / "adapter_model.safetensors").read_bytes() for f in runs]
    assert weights[0] == weights[1]
    other = make_context(tiny_folder, tmp_path / "three", seed=1)
    await train(other)
    assert losses(other.folder) != losses(one)


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_async_samples_respect_max_staleness(begin: Begin, max_staleness: int) -> None:
    context = begin(
        num_actors=2,
        loop={"mode": "async", "steps": 4},
        actors={"games_in_flight": 4},
        buffer={"max_staleness": max_staleness},
    )
    assert await train(context) == "all updates made"
    assert context.version == 4
    for update in (1, 2, 3, 4):
        assert all(s["staleness"] <= max_staleness for s in lines(context.folder.samples(update)))


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_run_stops_at_max_time(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    context = begin(
        loop={"mode": mode, "steps": 10_000, "max_time": 60.0},
        actors={"games_in_flight": 4},
        eval={"every": 5000, "games": 4},
    )
    updated: list[float] = []

    def monotonic() -> float:
        """Return a clock that stands still before the first update; then one second is left."""
        if not context.version:
            return 0.0
        updated.append(time.monotonic())
        return 59.0 + updated[-1] - updated[0]

    monkeypatch.setattr("unstable.loop.train.time", SimpleNamespace(monotonic=monotonic))
    assert await train(context) == "time is up"
    last = context.version
    assert 0 < last < 10_000
    assert context.versions.evaluated == last
    assert len(played(context.folder, "eval")) == 2 * 4  # at the start and at the end


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_run_stops_at_max_time_with_batches_ready(begin: Begin, mode: str) -> None:
    context = begin(
        loop={"mode": mode, "steps": 10_000, "max_time": 1.0},
        learner={"batch_size": 1, "micro_batch_size": 1},
        buffer={"capacity": 100_000, "max_staleness": 100_000},
        actors={"games_in_flight": 2},
    )
    rewards = Rewards(context.config.buffer.rewards)
    for game_id in range(5000):
        result = game(game_id=10**6 + game_id)
        context.buffer.add(result.spec, packed(rewards.trajectories(result)))
    assert await train(context) == "time is up"
    assert context.buffer.size > 0


async def test_evaluation_does_not_affect_training(tiny_folder: Path, tmp_path: Path) -> None:
    """Invariant 15: with and without evaluation, the same games are trained on, to the bit."""
    folders = []
    for every in (0, 1):
        evaluation = {"every": every, "games": 4}
        context = make_context(tiny_folder, tmp_path / str(every), eval=evaluation)
        await train(context)
        folders.append(context.folder)
    silent, judged = folders
    assert not played(silent, "eval")
    assert len(played(judged, "eval")) == 4 * 4
    assert played(silent) == played(judged)
    assert losses(silent) == losses(judged)


async def test_evaluating_twice_plays_the_same_games(begin: Begin) -> None:
    context = begin(loop={"mode": "sync", "steps": 0})
    await train(context)
    first = played(context.folder, "eval")
    before = (context.buffer.stats(), context.schedule.state(), context.version)
    await evaluate(context, context.version)
    assert played(context.folder, "eval")[len(first) :] == first
    assert (context.buffer.stats(), context.schedule.state(), context.version) == before


async def test_constrained_games_are_legal_and_not_rated(begin: Begin) -> None:
    evaluation = {"constrained": True, "games": 4, "opponents": ["random", "base"]}
    context = begin(loop={"steps": 0}, eval=evaluation)
    await train(context)
    games = played(context.folder, "eval")
    assert len(games) == 8
    assert not any(turn["invalid"] for game in games for turn in game["turns"])
    assert not any(rating.games for rating in context.registry.ratings())


async def test_exploitability_uses_configured_samples(tiny_folder: Path, tmp_path: Path) -> None:
    """The whole way: config, loop, actor, exploiter, tracker."""
    found = {}
    for samples in (0, 3):
        measure = {"every": 1, "samples": samples}
        context = make_context(
            tiny_folder,
            tmp_path / str(samples),
            num_actors=2,
            games=[{"env": "Nim-v0", "args": {"piles": [2, 1]}}],
            eval={"every": 0, "exploitability": measure},
            loop={"mode": "sync", "steps": 1},
        )
        await train(context)
        rows = [json.loads(line) for line in context.folder.metrics.read_text().splitlines()]
        found[samples] = [row["exploit/Nim-v0/samples"] for row in rows]
    assert found == {0: [0, 0], 3: [3, 3]}


async def test_greedy_games_do_not_affect_others(tiny_folder: Path, tmp_path: Path) -> None:
    folders, ratings = [], []
    for name, temperature in (("one", [1.0]), ("two", [1.0, 0.0])):
        evaluation = {"games": 4, "temperature": temperature}
        loop = {"mode": "sync", "steps": 1}
        context = make_context(tiny_folder, tmp_path / name, eval=evaluation, loop=loop)
        await train(context)
        folders.append(context.folder)
        ratings.append(context.registry.state())
    one, two = folders
    assert played(one) == played(two)
    assert ratings[0] == ratings[1]
    temperatures = [game["seats"][0]["temperature"] for game in played(two, "eval")]
    assert temperatures == [1.0] * 4 + [0.0] * 4 + [1.0] * 4 + [0.0] * 4
    sampled = [game for game in played(two, "eval") if game["game"] < 4]
    assert sampled == played(one, "eval")
    greedy = [row["eval/TicTacToe-v0/random/greedy/games"] for row in read_rows(two.metrics)]
    assert greedy == [4, 4]


class MoodyEnv(textarena.Env):
    """A game that raises for one seed in three, after a move."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=None)
        self.state.reset(
            game_state={}, player_prompt_function=lambda player_id, game_state: "Say [x]."
        )
        self.moody = (seed or 0) % 3 == 0

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if self.moody:
            raise OSError("the dice are gone")
        self.state.set_winner(player_id=self.state.current_player_id, reason="said it")
        return self.state.step()


MOODY: dict[str, Any] = {
    "games": [{"env": f"{__name__}:MoodyEnv", "name": "Moody"}],
    "opponents": {"draw": {"self": 1, "past": 1, "fixed": 0}, "fixed": []},
    "eval": {"every": 0},
}


async def test_run_continues_after_failed_games(begin: Begin) -> None:
    """Invariant 17: counted, logged with its traceback, and the run goes on."""
    context = begin(**MOODY, loop={"mode": "sync", "steps": 2, "max_failures": 99})
    assert await train(context) == "all updates made"
    assert context.failures > 0
    rows = read_rows(context.folder.metrics)
    assert sum(row["collect/failures"] for row in rows) == context.failures


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.fault("more than `loop.max_failures` of the last 100 games failed")
async def test_run_stops_above_max_failures(begin: Begin, mode: str) -> None:
    context = begin(**MOODY, loop={"mode": mode, "steps": 1000, "max_failures": 3})
    with pytest.raises(
        RuntimeError, match=r"\d+ of the last \d+ games failed, more than"
    ) as raised:
        await train(context)
    assert str(raised.value).endswith("the dice are gone")
    failed = int(str(raised.value).split()[0])
    assert failed == 4 or mode == "async" and failed > 4  # others may have failed at that moment


class BrokenLearner(LocalLearner):
    async def update(self, batch: PackedBatch) -> Update:
        raise FloatingPointError("the loss is nan")


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_learner_error_ends_the_run(begin: Begin, mode: str) -> None:
    context = begin(loop={"mode": mode, "steps": 3})
    context.learner = BrokenLearner(context.config, context.folder)
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        await asyncio.wait_for(train(context), timeout=300)


# Functions of loop/context.py


class Played(NamedTuple):
    """A share as an actor was given it."""

    actor: int
    specs: list[GameSpec]


async def spread_out(count: int, num_actors: int) -> tuple[list[GameSpec], list[Played]]:
    specs = [game(game_id=number).spec for number in range(count)]
    begun = asyncio.Barrier(num_actors)

    async def play(index: int, share: Sequence[GameSpec]) -> list[Played]:
        await asyncio.wait_for(begun.wait(), 10)  # all start before any ends
        for _ in range(num_actors - index):  # the last actor is the fastest
            await asyncio.sleep(0)
        return [Played(index, list(share))]

    actors: Any = [object()] * num_actors
    return specs, await distribute(specs, actors, play)


@every_row("count, num_actors", (12, 3), (13, 3), (2, 4), (0, 2), (5, 1))
async def test_games_are_distributed_evenly_and_concurrently(count: int, num_actors: int) -> None:
    specs, shares = await spread_out(count, num_actors)
    assert [share.actor for share in shares] == list(range(num_actors))
    sizes = [len(share.specs) for share in shares]
    assert sum(sizes) == count and max(sizes) - min(sizes) <= 1
    assert [spec for share in shares for spec in share.specs] == [
        spec for index in range(num_actors) for spec in specs[index::num_actors]
    ]


async def test_actor_error_ends_distribution() -> None:
    async def play(index: int, share: Sequence[GameSpec]) -> list[GameSpec]:
        if index == 1:
            raise OSError("the actor is gone")
        return list(share)

    actors: Any = [object()] * 3
    with pytest.raises(OSError, match="the actor is gone"):
        await distribute([game().spec] * 6, actors, play)


class Dozer:
    """An actor that says what it does, and takes a while."""

    def __init__(self, index: int, deeds: list[str]) -> None:
        self.index = index
        self.deeds = deeds

    async def sleep(self) -> None:
        self.deeds.append("lies down")
        await asyncio.sleep(0)
        self.deeds.append("sleeps")

    async def wake(self) -> None:
        self.deeds.append("stirs")
        await asyncio.sleep(0)
        self.deeds.append("wakes")


def dozers(share: str) -> tuple[Any, RunConfig, list[str]]:
    deeds: list[str] = []
    actors = [Dozer(index, deeds) for index in range(2)]
    return actors, parse({"actors": {"share_gpu": share}}), deeds


DOWN, UP = ["lies down", "lies down", "sleeps", "sleeps"], ["stirs", "stirs", "wakes", "wakes"]


async def test_actors_sleep_during_updates_and_wake_on_errors() -> None:
    actors, config, deeds = dozers("sleep")
    async with sleeping(actors, config):
        deeds.append("learning")
    assert deeds == [*DOWN, "learning", *UP]
    actors, config, deeds = dozers("sleep")
    with pytest.raises(FloatingPointError, match="nan"):
        async with sleeping(actors, config):
            raise FloatingPointError("nan")
    assert deeds == [*DOWN, *UP]


@every_row("share", "off", "split", "auto")
async def test_actors_sleep_only_with_share_gpu_sleep(share: str) -> None:
    actors, config, deeds = dozers(share)
    async with sleeping(actors, config):
        deeds.append("learning")
    assert deeds == ["learning"]


async def test_share_gpu_sleep_alternates_play_and_updates(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeds: list[str] = []

    def note(kind: type, method: str, does: Callable[..., Any]) -> None:
        def noted(self: Any, *arguments: Any) -> Any:
            deeds.append(method)
            return does(self, *arguments)

        monkeypatch.setattr(kind, method, noted)

    async def nothing(self: Any) -> None: ...

    note(LocalActor, "sleep", nothing)
    note(LocalActor, "wake", nothing)
    for method in ("play", "publish"):
        note(LocalActor, method, getattr(LocalActor, method))
    for method in ("update", "hold", "save"):
        note(LocalLearner, method, getattr(LocalLearner, method))
    context = begin(loop={"mode": "sync", "steps": 2}, eval={"every": 1, "games": 4})
    actors = context.config.actors.model_copy(update={"share_gpu": "sleep"})
    context.config = context.config.model_copy(update={"actors": actors})
    await train(context)
    once = [name for name, _ in groupby(deeds)]  # a batch may take several rounds of play
    turn = ["play", "sleep", "update", "hold", "wake", "publish", "save"]
    assert once == ["hold", "publish", "save", *turn, *turn, "play"]


async def judge(result: GameResult, seat: int) -> float:
    """Takes a while, and fails now and then."""
    await asyncio.sleep(0.01)
    if result.spec.game_id % 4 == 0:
        raise OSError("the judge has gone")
    return 2.0


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_async_judge_runs_during_play(begin: Begin, mode: str) -> None:
    context = begin(
        buffer={"rewards": [{"term": f"{__name__}:judge"}]},
        loop={"mode": mode, "steps": 2, "max_failures": 99},
    )
    assert await train(context) == "all updates made"
    judged = [each for each in played(context.folder) if any(t["rewards"] for t in each["turns"])]
    assert judged and all(each["game"] % 4 for each in judged)
    rows = read_rows(context.folder.metrics)
    written = sum(row["collect/failures"] for row in rows)
    assert 0 < written <= context.failures
    assert written == context.failures or mode == "async"  # async mode ends with games in flight
    assert {row["learn/reward_mean"] for row in rows[1:]} == {2.0}


async def test_max_failures_counts_recent_games(begin: Begin) -> None:
    context = begin(loop={"max_failures": 2})
    good = game(purpose="eval")
    bad = GameFailure.of(good.spec, OSError("the dice are gone"))
    for _ in range(5):  # one failure in 50 games is allowed
        context.count(bad)
        for _ in range(49):
            context.count(good)
    context.count(bad)
    with pytest.raises(RuntimeError, match="3 of the last 100 games failed, more than loop"):
        context.count(bad)
