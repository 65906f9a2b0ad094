"""Curriculum: rules sample envs from statistics of rewards, and schedules resume exactly."""

import asyncio
import json
import math
import random
import statistics
import sys
from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.config import RunConfig, dump, parse
from unstable.league.curriculum import Curriculum, CurriculumState, EnvStats, progress, spread
from unstable.league.schedule import Schedule
from unstable.league.series import ScheduleState
from unstable.loop.train import train
from unstable.records.reading import read_rows
from unstable.studies.ratings import ratings
from unstable.types import GameSpec, PackedTrajectory, PlayedGame, PlayerId

DRAWS = 10_000
POLICY = PlayerId.policy(1)
ENVS = ("TicTacToe-v0", "Nim-v0", "KuhnPoker-v0")


def config(rule: str = "spread", weights: tuple[float, ...] = (1, 2, 1), **more: Any) -> RunConfig:
    games = [{"env": env, "weight": w} for env, w in zip(ENVS, weights, strict=False)]
    return parse({"games": games, "curriculum": {"rule": rule, **more}})


def finished(env: str, *rewards: float) -> PlayedGame:
    """A game with a trajectory for each seat."""
    spec = GameSpec(game_id=0, purpose="train", env=env, seed=0, seats=())
    packed = [PackedTrajectory(0, seat, seat, 1, 1, each, b"") for seat, each in enumerate(rewards)]
    return PlayedGame(spec, list(rewards), None, False, 1, 1, 1, b"", [], packed)


def test_spread_and_progress_match_hand_computed_values() -> None:
    """A seat that always wins has no spread, however far its rewards are from the other's."""
    curriculum = Curriculum(config(decay=0.5))
    curriculum.count([finished(ENVS[0], 1.0, -1.0)] * 4)
    curriculum.count([finished(ENVS[1], 1.0, 0.0), finished(ENVS[1], -1.0, 0.0)])
    first, second, third = curriculum.stats()
    assert first == EnvStats(ENVS[0], 1, 8, 0, 0)
    assert second == EnvStats(ENVS[1], 2, 4, 0.5, 0)
    assert third == EnvStats(ENVS[2], 1, 0, 0.5, 0), "largest values of the others"
    curriculum.fade()
    curriculum.count([finished(ENVS[0], 0.0, 0.0)] * 2)
    first, *_ = curriculum.stats()
    fast, slow = 4 * 0.5 / (4 * 0.5 + 2), 4 * 0.5**0.25 / (4 * 0.5**0.25 + 2)
    assert first.trajectories == 8
    assert first.spread == pytest.approx(statistics.pstdev([1, 1, 0, 0]))
    assert first.progress == pytest.approx(slow - fast)
    assert spread([first]) == [first.spread] and progress([second]) == [0]


def known(rule: str, **more: Any) -> Curriculum:
    """Return a curriculum with rewards of three envs over two versions; one has no spread."""
    curriculum, chance = Curriculum(config(rule, **more)), random.Random(3)
    for _ in range(2):
        curriculum.count([finished(ENVS[0], 1.0, -1.0)] * 40)
        for _ in range(40):
            reward = chance.choice([-1.0, 0.0, 1.0])
            curriculum.count([finished(ENVS[1], reward, -reward)])
            reward = chance.uniform(-0.2, 0.4)
            curriculum.count([finished(ENVS[2], reward, -reward)])
        curriculum.fade()
    return curriculum


@every_row("rule", "spread", "progress")
def test_rule_samples_envs_by_its_formula(rule: str) -> None:
    curriculum = known(rule, share=0.75)
    envs = curriculum.stats()
    asked = [each.weight * getattr(each, rule) for each in envs]
    expected = [
        0.25 * each.weight / 4 + 0.75 * own / sum(asked)
        for each, own in zip(envs, asked, strict=True)
    ]
    assert curriculum.probabilities() == pytest.approx(expected)
    assert asked[0] == 0 and len({*expected}) == 3
    schedule = Schedule(config(rule))
    schedule.envs = curriculum.probabilities()
    drawn = Counter(schedule.draw_group(POLICY, [])[0].env for _ in range(DRAWS))
    pairs = [(drawn[env], DRAWS * share) for env, share in zip(ENVS, expected, strict=True)]
    assert sum((count - mean) ** 2 / mean for count, mean in pairs) < 13.8  # 99.9 % quantile
    shown = schedule.state().drawn
    for (env, found), pair in zip(shown.items(), pairs, strict=True):
        assert found == pytest.approx(pair), env


def test_config_weights_apply_by_default_and_without_signal() -> None:
    assert Curriculum(config("weight")).probabilities() == []
    assert Curriculum(config("spread", (1,))).probabilities() == []
    nothing = Curriculum(config("progress"))
    nothing.count([finished(env, 1.0, -1.0) for env in ENVS])
    assert nothing.probabilities() == [0.25, 0.5, 0.25]


def test_restored_schedule_redraws_games_after_probability_changes() -> None:
    run = config()
    schedule, specs = Schedule(run), []
    for envs in ([], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]):
        schedule.envs = envs
        specs += [spec for _ in range(40) for spec in schedule.draw_group(POLICY, [])]
    text = schedule.state().model_dump_json()
    after = Schedule(run)
    after.restore(ScheduleState.model_validate_json(text, strict=True))
    assert after.drawn_again({spec.game_id for spec in specs}) == specs
    assert after.draw_group(POLICY, []) == schedule.draw_group(POLICY, [])
    assert after.state().drawn == schedule.state().drawn


def test_restored_curriculum_has_equal_probabilities() -> None:
    curriculum = known("progress")
    text = json.dumps(curriculum.state().model_dump(mode="json"))
    after = Curriculum(config("progress"))
    after.restore(CurriculumState.model_validate_json(text, strict=True))
    assert after.probabilities() == curriculum.probabilities()


def endless(envs: list[EnvStats]) -> list[float]:
    return [math.inf] * len(envs)


def last(envs: list[EnvStats], factor: float = 1.0) -> list[float]:
    return [factor * (at + 1 == len(envs)) for at in range(len(envs))]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_rules")
    vars(module).update(endless=endless, last=last)
    monkeypatch.setitem(sys.modules, "own_rules", module)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    "rule, args, said",
    [
        ("spred", {}, "curriculum.rule = 'spred': unknown rule or module:function; did you mean"),
        ("own_rules:endless", {}, "curriculum.rule = 'own_rules:endless': returned [inf, inf, "),
        ("spread", {"a": 1}, "curriculum.rule = 'spread' with args = {'a': 1}: wrong signature"),
    ],
)
def test_invalid_rule_is_reported_in_one_line(rule: str, args: dict[str, Any], said: str) -> None:
    assert line_of(Curriculum, config(rule, args=args)).startswith(said)


@pytest.mark.usefixtures("own")
def test_custom_rule_sets_probabilities() -> None:
    curriculum = Curriculum(config("own_rules:last", args={"factor": 3.0}, share=1.0))
    assert curriculum.probabilities() == [0.0, 0.0, 1.0]


def nothing(env: Any) -> list[float]:
    """Return payoffs of a game without learning signal."""
    return [0.0, 0.0]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_run_plays_envs_without_signal_less(begin, mode, capsys):
    tied: dict[str, Any]
    tied = {"env": "TicTacToe-v0", "name": "tied", "payoffs": f"{__name__}:nothing"}
    tied["invalid_moves"] = {"forfeit_reward": 0.0}
    context = begin(
        games=[tied, {"env": "TicTacToe-v0"}],
        curriculum={"rule": "spread"},
        model={"name": "tiny", "init": "fresh", "dtype": "float32", "adapter": {"rank": 4}},
        opponents={"draw": {"self": 1, "past": 0, "fixed": 1}},
        learner={"batch_size": 64, "micro_batch_size": 32, "env_weights": "spread"},
        eval={"every": 0},
        loop={"mode": mode, "steps": 3},
    )
    asyncio.run(train(context))
    context.folder.config.write_text(dump(context.config), encoding="utf-8")
    rows = read_rows(context.folder.metrics)
    assert rows[0]["curriculum/probability/tied"] == 0.5
    found = [rows[-1][f"curriculum/probability/{env}"] for env in ("tied", "TicTacToe-v0")]
    assert found == pytest.approx([0.1, 0.9]), "0.8 by the rule, half of 0.2 by weight"

    assert rows[-1]["curriculum/spread/tied"] == 0 < rows[-1]["curriculum/spread/TicTacToe-v0"]
    drawn = {row["env"]: row for row in ratings([context.folder.root], 1.0, as_json=True)["drawn"]}
    assert drawn["TicTacToe-v0"]["drawn"] > drawn["tied"]["drawn"] > 0

    capsys.readouterr()
    ratings([context.folder.root], 1.0)
    assert "Environments sampled" in capsys.readouterr().out
