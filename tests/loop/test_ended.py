"""Messages of ended games: their figures do not depend on how games are grouped into them."""

import json
import math
import pickle
from typing import Any

from tests.helpers.builders import game
from tests.helpers.rows import every_row
from unstable.config import RewardConfig, RunConfig, parse
from unstable.loop.ended import Ended, Judged
from unstable.records.files import plain
from unstable.rewards.terms import Rewards
from unstable.tracking.play import PlayMetrics
from unstable.types import GameFailure, Unwritable

TERMS = [RewardConfig(weight=1 / 3), RewardConfig(term="length", weight=-0.1)]


def config() -> RunConfig:
    terms = [term.model_dump() for term in TERMS]
    return parse({"buffer": {"rewards": terms}, "tracking": {"dashboard": "off"}})


def judged(count: int) -> list[Judged]:
    """Games whose rewards cannot be added up without rounding."""
    rewards, made = Rewards(TERMS), []
    for number in range(count):
        players = [("main@3", "main@3"), ("main@3", "random"), ("main@2", "main@3")][number % 3]
        outcomes = (number / 7, -number / 11) if number % 4 else (0.0, 0.0)
        played = game(players, outcomes, game_id=number, turns=3 + number % 5)
        made.append((played, rewards.trajectories(played)))
    return made


def taken(messages: list[Ended]) -> dict[str, Any]:
    metrics = PlayMetrics(config())
    for ended in messages:
        arrived: Ended = pickle.loads(pickle.dumps(ended))
        metrics.tally.add(arrived.play)
    return metrics.take(1.0)


@every_row("together", 1, 3, 17, 60)
def test_metrics_do_not_depend_on_batching(together: int) -> None:
    games = judged(60)
    one_by_one = taken([Ended.of([each]) for each in games])
    starts = range(0, len(games), together)
    assert taken([Ended.of(games[n : n + together]) for n in starts]) == one_by_one
    values = [
        sample.reward + each.terminal_reward
        for _, own in games
        for each in own
        for sample in each.samples
    ]
    assert one_by_one["collect/reward"] == math.fsum(values) / len(values)


def test_failures_keep_order_and_lines_have_rewards() -> None:
    first, second = judged(2)
    failed = GameFailure.of(game(game_id=9).spec, LookupError("gone"))
    ended = Ended.of([first, failed, second])
    assert [each.spec.game_id for each in ended.games] == [0, 9, 1]
    assert ended.play.counts["collect/games"] == 2
    for (played, own), finished in zip((first, second), ended.finished, strict=True):
        assert [each.opened() for each in finished.trajectories] == own
        assert not isinstance(finished.line, Unwritable)
        record = json.loads(finished.line)
        found = {turn["index"]: turn.get("rewards") for turn in record["turns"]}
        for each in own:
            for sample in each.samples:
                values = {**each.rewards, **sample.rewards}
                expected = {term: plain(value) for term, value in values.items()}
                assert found[sample.turn] == expected
        assert record["spec"]["game"] == played.spec.game_id


def test_unwritable_game_line_keeps_its_samples() -> None:
    ((played, own),) = judged(1)
    played.seconds = float("nan")
    (finished,) = Ended.of([(played, own)]).finished
    assert isinstance(finished.line, Unwritable)
    assert finished.num_samples == 3
