"""Rollbacks after the guard's alarms, with stand-ins for models and with a real one."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace

from tests.helpers.builders import game
from unstable.config import RewardConfig, parse
from unstable.league.guard import Guard
from unstable.league.rules import figures
from unstable.league.schedule import Schedule
from unstable.loop.context import Context
from unstable.loop.ended import Ended
from unstable.loop.protocols import HeldVersion, Learner
from unstable.loop.state import parse as parse_state
from unstable.loop.train import train
from unstable.models.adapters import read_adapter
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.rewards.terms import Rewards
from unstable.runtime.local import LocalLearner
from unstable.tracking.tracker import Tracker
from unstable.types import (
    ActorState,
    GameResult,
    GameSpec,
    MeanLoss,
    PackedBatch,
    PlayerId,
    TokenSample,
    Update,
)
from unstable.types.seeds import derive_seed

SOUND, NOISE = {"win": 0.8, "entropy": 0.4}, {"win": 0.0, "entropy": 0.02}


class StandInLearner:
    """Learner whose weights are its win rate and entropy; update `ruin` replaces them by noise."""

    def __init__(self, folder: RunFolder, ruin: int | None) -> None:
        self.folder, self.ruin = folder, ruin
        self.version, self.weights, self.rate = 0, SOUND, 1.0
        self.held: dict[int, dict[str, float]] = {}

    async def update(self, batch: PackedBatch) -> Update:
        assert batch.version == self.version
        self.version += 1
        if self.version == self.ruin:
            self.weights = NOISE
        metrics: dict[str, float | None] = {"learn/loss": 0.0}
        metrics["learn/entropy"] = self.weights["entropy"]

        return Update(version=self.version, metrics=metrics, advantages=[0.0] * batch.num_samples)

    async def loss_on(self, batch: PackedBatch) -> MeanLoss:
        raise AssertionError("unused: no recorded games")

    async def imitate(self, samples: Sequence[TokenSample]) -> Update:
        raise AssertionError("unused: no examples")

    async def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        raise AssertionError("unused: no model")

    async def hold(self) -> HeldVersion:
        self.held[self.version] = dict(self.weights)
        return HeldVersion(self.version, cast(Learner, self))

    async def adapter(self, version: int) -> dict[str, float]:
        return self.held[version]

    async def save(self, version: int) -> None:
        weights = self.held.pop(version)
        place = self.folder.checkpoint(version)
        place.mkdir(parents=True)  # refuses to overwrite
        (place / "adapter_weights.json").write_text(json.dumps(weights))
        (place / "learner.json").write_text(json.dumps(weights))

    async def scale_rate(self, factor: float) -> None:
        self.rate *= factor

    async def load(self, version: int) -> None:
        raise AssertionError("unused: no resume")

    async def restore(self, version: int) -> None:
        self.weights = json.loads((self.folder.checkpoint(version) / "learner.json").read_text())


class StandInActor:
    """Actor that draws lots: each version wins as often as its weights say."""

    def __init__(self) -> None:
        self.weights: dict[PlayerId, dict[str, float]] = {}
        self._rewards = Rewards([RewardConfig()])
        self._dealt: asyncio.Queue[Sequence[GameSpec]] = asyncio.Queue()

    async def play_round(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncGenerator[Ended]:
        games = [each async for each in self.play(specs)]
        yield Ended.of((each, self._rewards.trajectories(each)) for each in games)

    def deal(self, specs: Sequence[GameSpec]) -> None:
        self._dealt.put_nowait(specs)

    async def play_on(self) -> AsyncGenerator[Ended]:
        while True:
            async for ended in self.play_round(await self._dealt.get()):
                yield ended

    async def play(self, specs: Sequence[GameSpec]) -> AsyncGenerator[GameResult]:
        for spec in specs:
            players = [seat.player for seat in spec.seats]
            first, second = (0.5 if p.version is None else self.weights[p]["win"] for p in players)
            lot = derive_seed(7, spec.purpose, spec.game_id) / 2**64
            outcomes = (1.0, -1.0) if lot < (1 + first - second) / 2 else (-1.0, 1.0)
            result = game([player.name for player in players], outcomes)
            yield replace(result, spec=spec)

    async def present(self) -> None:
        pass

    async def state(self) -> ActorState:
        return ActorState(training_games=0, trained_turns=0, ended={}, raised={}, forks=[])

    async def restore(self, state: ActorState) -> None:
        assert not state.training_games

    async def publish(self, version: PlayerId, adapter: dict[str, float] | None = None) -> None:
        assert adapter is not None, "no resume"
        self.weights[version] = adapter

    async def announce(self, version: PlayerId) -> None:
        assert version in self.weights

    async def retire(self, version: PlayerId) -> None:
        del self.weights[version]

    async def stats(self) -> dict[str, float]:
        return {}


def stand_ins(run_dir: Path, ruin: int | None, mode: str = "sync", **guard: Any) -> Context:
    config = parse(
        {
            "actors": {"games_in_flight": 4},
            "buffer": {"capacity": 1000},
            "learner": {"batch_size": 64},
            "eval": {"every": 2, "games": 64},
            "loop": {"mode": mode, "steps": 24},
            "guard": guard,
            "tracking": {"run_dir": str(run_dir), "dashboard": "off", "keep_checkpoints": 2},
        }
    )
    folder = RunFolder(run_dir)
    actor: Any = StandInActor()
    learner: Any = StandInLearner(folder, ruin)
    rewards = Rewards(config.buffer.rewards)
    parts: dict[str, Any] = {"actors": [actor], "learner": learner, "rewards": rewards}
    return Context(config=config, folder=folder, tracker=Tracker(config, folder), **parts)


def weights(folder: RunFolder) -> list[dict[str, float]]:
    """Published weights of every version in the folder."""
    return [
        json.loads((folder.checkpoint(version) / "adapter_weights.json").read_text())
        for version in folder.versions()
    ]


def rate(context: Context) -> float:
    assert isinstance(context.learner, StandInLearner)
    return context.learner.rate


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_ruined_policy_is_rolled_back_to_the_best_version(tmp_path, mode):
    context = stand_ins(tmp_path / "run", ruin=12, mode=mode, action=["warn", "rollback"])
    ratings: dict[int | None, dict[str, tuple[float, float]]] = {}  # as of each version
    add = context.registry.add

    def noted(version: PlayerId, inherits_from: PlayerId | None = None) -> None:
        add(version, inherits_from)
        ratings[version.version] = context.registry.state().ratings

    context.registry.add = noted  # type: ignore[method-assign]
    assert await train(context) == "all updates made"
    rows = read_rows(context.folder.metrics)
    assert [row["version"] for row in rows] == list(range(25))
    (back,) = [row["version"] for row in rows if row.get("guard/rolled_back_to") is not None]
    best = rows[back]["guard/rolled_back_to"]
    assert 12 < back <= 15 and best < 12 and best % 2 == 0
    # Nothing is overwritten; noise is published until the alarm, then the best version.
    assert weights(context.folder) == [SOUND] * 12 + [NOISE] * (back - 12) + [SOUND] * (25 - back)
    assert sum(row["guard/alarms"] for row in rows[1:12]) == 0
    assert sum(row["guard/alarms"] for row in rows[back + 1 :]) == 0
    assert rows[back]["learn/entropy"] == NOISE["entropy"]  # of the discarded update
    assert rows[-1]["eval/TicTacToe-v0/random/sampled/score"] > 0.5
    mu, bad, good = (ratings[back][f"main@{v}"][0] for v in (back, back - 1, best))
    assert mu == good > bad + 1
    whole = [v for v in range(25) if (context.folder.checkpoint(v) / "learner.json").exists()]
    assert whole == [22, 23, 24], "the best at the last publication, and the newest two"
    assert context.guard.needed == {24}


async def test_healthy_run_raises_no_alarm(tmp_path: Path) -> None:
    context = stand_ins(tmp_path / "run", ruin=None, action="rollback")
    await train(context)
    rows = read_rows(context.folder.metrics)
    assert [row["guard/alarms"] for row in rows] == [0] * 25
    assert not any(name.startswith(("guard/alarm/", "guard/action/")) for name in rows[-1])


async def test_warning_changes_nothing(tmp_path: Path) -> None:
    context = stand_ins(tmp_path / "run", ruin=12)
    await train(context)
    rows = read_rows(context.folder.metrics)
    assert sum(row["guard/alarms"] for row in rows) > 0
    assert weights(context.folder) == [SOUND] * 12 + [NOISE] * 13
    assert rows[-1]["guard/draw/self"] == 0.5 and rate(context) == 1.0


async def test_alarm_changes_opponents_and_learning_rate(tmp_path: Path) -> None:
    shares = {"self": 0.0, "past": 0.0, "fixed": 1.0}
    actions = ["opponents", "learning_rate"]
    context = stand_ins(tmp_path / "run", ruin=12, action=actions, factor=0.25, opponents=shares)
    await train(context)
    rows = read_rows(context.folder.metrics)
    first = next(row["version"] for row in rows if row.get("guard/action/opponents"))
    acted = sum(row.get("guard/action/learning_rate") or 0 for row in rows)
    assert rate(context) == 0.25**acted < 1
    before, after = rows[first - 1], rows[first]
    assert (before["guard/draw/self"], after["guard/draw/self"]) == (0.5, 0.0)
    assert before["collect/versus/self/share"] > 0
    drawn = [row["collect/versus/fixed/share"] for row in rows[first + 1 :]]
    assert {share for share in drawn if share is not None} == {1.0}
    # A run resumed from the checkpoint has the same shares.
    state = parse_state(context.folder.state(24).read_bytes(), 24)
    assert state is not None
    resumed = Schedule(context.config)
    assert resumed.shares != context.schedule.shares
    resumed.restore(state.schedule)
    assert resumed.shares.model_dump() == shares


async def test_guard_reproduces_alarms_from_metrics(tmp_path: Path) -> None:
    """A finished run can be checked again with other thresholds."""
    context = stand_ins(tmp_path / "run", ruin=12)
    await train(context)
    rows = read_rows(context.folder.metrics)
    again = Guard(context.config)
    found = {row["version"]: again.check(row["version"], row) for row in rows[1:]}
    histories = context.guard.state().histories
    assert again.state().histories == histories
    assert {"collect/versus/self/draw", "collect/versus/forfeit", "learn/entropy"} <= set(histories)
    assert "collect/action_entropy/TicTacToe-v0" in histories
    assert figures(rows[5], 5)["collect/versus/forfeit"].size > 10
    counted = {version: sum(a.rule == "entropy" for a in each) for version, each in found.items()}
    assert [version for version, count in counted.items() if count] == [14, 24]
    state = parse_state(context.folder.state(24).read_bytes(), 24)
    assert state is not None and state.guard.histories == histories


async def test_rollback_restores_weights_of_a_real_learner(begin, tmp_path):
    # Any KL raises an alarm, so that the third update is the first to be discarded.
    guard = {
        "action": ["rollback", "learning_rate"],
        "thresholds": {"kl_sampling": 1e-30},
        "patience": 5,
    }
    context = begin(
        guard=guard,
        loop={"mode": "sync", "steps": 4},
        eval={"every": 2, "games": 2},
        learner={"batch_size": 16, "micro_batch_size": 8, "learning_rate": 0.01},
        tracking={"run_dir": str(tmp_path / "run"), "dashboard": "off", "keep_checkpoints": 1},
    )
    await train(context)
    rows = read_rows(context.folder.metrics)
    assert [row["guard/rolled_back_to"] for row in rows if "guard/rolled_back_to" in row][0] == 2
    assert isinstance(context.learner, LocalLearner) and context.learner.learner.version == 4
    saved = [read_adapter(context.folder.checkpoint(v), "any").weights for v in range(5)]
    assert saved[3] == saved[2] and len({saved[0], saved[2], saved[4]}) == 3
    states = [torch.load(context.folder.checkpoint(v) / "learner.pt") for v in (2, 4)]
    moments = [state["optimizer"]["adamw"]["state"][0]["step"] for state in states]
    assert moments == [2, 3], "the third step is discarded"
