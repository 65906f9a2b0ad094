"""Which answers the branches of a position begin with, by what an ensemble makes of them."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.collector import Scripted, collector, played
from tests.helpers.groups import branching
from tests.helpers.loop import lines, make_context
from tests.helpers.loop import played as on_file
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.config import parse
from unstable.contrib.exploring import most_variance, thompson
from unstable.engines.base import SamplingRequest
from unstable.league.schedule import Schedule
from unstable.loop.train import train
from unstable.types import GameResult, GameSpec, PlayerId

VERSIONS = tuple(map(PlayerId.policy, range(3)))


def scores(*rows: Sequence[float]) -> np.ndarray:
    return np.array(rows, dtype=np.float64)


def test_variance_rule_picks_pair_with_most_varying_difference() -> None:
    """Answers 1 and 2: a member finds 1 better by 4, the other 2 better by 4."""
    found = scores([1.0, 2.0, -2.0, 1.0], [1.0, -2.0, 2.0, 1.5])
    assert most_variance(found, 2, random.Random(0)) == [1, 2]
    assert most_variance(found, 3, random.Random(0)) == [1, 2, 3]  # then differences of 4 and 5.1
    assert sorted(most_variance(found, 4, random.Random(0))) == [0, 1, 2, 3]
    assert most_variance(scores([3.0], [4.0]), 1, random.Random(0)) == [0]


def test_thompson_picks_members_best_answers_evenly() -> None:
    found = scores([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.9, 1.0], [0.0, 0.0, 1.0])
    chance = random.Random(0)
    first = Counter(thompson(found, 1, chance)[0] for _ in range(4000))
    expected = {0: 1000, 1: 1000, 2: 2000}
    chi_squared = sum((first[i] - number) ** 2 / number for i, number in expected.items())
    assert chi_squared < 13.8  # p = 0.001 at two degrees of freedom


@given(
    st.integers(1, 5).flatmap(
        lambda answers: st.lists(
            st.lists(st.floats(-9, 9), min_size=answers, max_size=answers), min_size=1, max_size=4
        )
    ),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_chosen_answers_are_distinct(rows: list[list[float]], count: int, chance: Any) -> None:
    found, count = scores(*rows), min(count, len(rows[0]))
    for rule in (thompson, most_variance):
        chosen = rule(found, count, chance)
        assert len(set(chosen)) == len(chosen) == count
        assert set(chosen) <= set(range(len(rows[0])))


class Judging(Scripted):
    """Engine in which version k prefers the action k + 1 by far."""

    async def score(
        self, prompt_ids: Any, continuations: Any, *, adapter: str | None
    ) -> list[list[float]]:
        answers = [self._tokenizer.decode(ids) for ids in continuations]
        liked = None if adapter is None else f"[{1 + int(adapter.partition('@')[2])}]"
        return [[0.0 if answer == liked else -5.0] for answer in answers]


def exploring(engine: Scripted, rule: str, size: int, candidates: int = 32) -> Any:
    explore = {"rule": rule, "candidates": candidates}
    groups = {"size": size, "by": "branch", "explore": explore}
    return collector(engine, groups=groups, learner={"algorithm": {"name": "rft"}})


def specs(count: int, size: int) -> list[GameSpec]:
    return [replace(spec, ensemble=VERSIONS) for spec in branching(count, size)]


@pytest.mark.parametrize(
    ("rule", "isolated"), [("thompson", False), ("variance", False), ("variance", True)]
)
async def test_branches_start_with_chosen_answers(rule: str, isolated: bool) -> None:
    playing = exploring(Judging(), rule, size=3)
    if isolated:
        playing.play_isolated("count")
    try:
        results = await played(playing.play(specs(6, 3)))
    finally:
        await playing.close()
    for result in results:
        assert isinstance(result, GameResult)
        firsts = [branch.turns[branch.fork] for branch in result.branches]
        assert sorted(turn.answer.action for turn in firsts) == ["[1]", "[2]", "[3]"]
        for turn in firsts:
            sampled = turn.answer.sampled
            assert sampled is not None and sampled.version == 0
            assert sampled.prompt_ids == result.turns[turn.index].answer.sampled.prompt_ids
            assert turn.player == PlayerId.policy(0)


def test_games_of_players_that_copy_them_are_never_isolated_later() -> None:
    opponents = {"fixed": [{"kind": "mcts", "name": "searching"}]}
    playing = collector(Scripted(), opponents=opponents)
    playing.play_isolated("count")
    assert not playing._isolated


async def test_branches_share_answer_when_few_are_distinct() -> None:
    class Sure(Judging):
        async def generate(self, request: SamplingRequest) -> Any:
            return await super().generate(replace(request, seed=3))

    (result,) = await played(exploring(Sure(), "variance", size=3).play(specs(1, 3)))
    firsts = [branch.turns[branch.fork].answer.action for branch in result.branches]
    assert len(firsts) == 3 and len(set(firsts)) == 1


def config(**changes: Any) -> dict[str, Any]:
    groups = {"by": "branch", "size": 2, "explore": {"rule": "variance", "ensemble": 3}}
    return {"groups": groups, "learner": {"algorithm": {"name": "rft"}}, **changes}


def test_ensemble_has_policy_and_evenly_spaced_versions() -> None:
    schedule, past = Schedule(parse(config())), list(map(PlayerId.policy, range(8)))
    policy = PlayerId.policy(8)
    (spec,) = schedule.draw_group(policy, past)
    assert spec.ensemble == (past[0], past[4], policy)
    (spec,) = schedule.draw_group(policy, [])
    assert spec.ensemble == (policy,)
    (spec,) = schedule.draw_group(policy, past[:1])
    assert spec.ensemble == (past[0], policy)


def test_ensemble_does_not_change_other_draws() -> None:
    past = list(map(PlayerId.policy, range(4)))
    plain = Schedule(parse(config(groups={"by": "branch", "size": 2})))
    chosen = Schedule(parse(config()))
    for _ in range(20):
        (one,), (other,) = (each.draw_group(PlayerId.policy(4), past) for each in (plain, chosen))
        assert one == replace(other, ensemble=())


@every_row(
    "changes, problem",
    ({"groups": {"explore": {"rule": "variance"}}}, "set groups.by to branch"),
    ({"learner": {"algorithm": {"name": "ppo"}}}, "needs answers sampled by the policy"),
)
def test_biased_exploration_is_rejected(changes: Any, problem: str) -> None:
    refused(problem, parse, config(**changes))


async def test_exploring_run_is_reproducible(tiny_folder: Path, tmp_path: Path) -> None:
    def run(name: str, rule: str) -> Any:
        explore = {"rule": rule, "candidates": 6, "ensemble": 2}
        return make_context(
            tiny_folder,
            tmp_path / name,
            groups={"by": "branch", "size": 2, "explore": explore},
            learner={"algorithm": {"name": "rft"}, "batch_size": 8, "micro_batch_size": 8},
            loop={"mode": "sync", "steps": 3},
            eval={"every": 0},
        )

    first = run("first", "variance")
    assert await train(first) == "all updates made"
    again = run("again", "variance")
    await train(again)
    games = on_file(first.folder)
    assert games == on_file(again.folder)
    branches = [game for game in games if game["member"]]
    assert {name for game in branches for name in game["ensemble"]} >= {"main@0", "main@2"}
    by_group: dict[tuple[int, int], list[Any]] = {}
    for game in branches:
        turn = game["turns"][game["fork"]]
        by_group.setdefault((game["seed"], game["fork"]), []).append(turn["text"])
    assert all(len(set(texts)) == len(texts) for texts in by_group.values() if len(texts) == 2)
    assert lines(first.folder.samples(1))
