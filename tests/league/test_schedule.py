"""Schedule of games, which the seed alone determines."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from tests.helpers.groups import drawn_games
from tests.helpers.rows import every_row
from unstable.config import DrawConfig, RunConfig, parse
from unstable.league import schedule as schedule_module
from unstable.league import series
from unstable.league.schedule import Schedule
from unstable.league.series import ScheduleState
from unstable.records.files import plain
from unstable.records.reading import as_record
from unstable.types import GameSpec, PlayerId

RANDOM = PlayerId("random")
POLICY = PlayerId.policy(2)


def config(**changes: object) -> RunConfig:
    return parse({"seed": 3, **changes})


def test_seed_determines_the_games() -> None:
    assert drawn_games(Schedule(config()), 50) == drawn_games(Schedule(config()), 50)
    assert drawn_games(Schedule(config()), 50) != drawn_games(Schedule(parse({"seed": 4})), 50)


def test_games_are_redrawn_by_id_after_changes() -> None:
    """After new versions, changed shares, a removed opponent and a resume."""
    opponents = {"fixed": [{"kind": "random"}, {"kind": "expert"}]}
    changes = {"opponents": opponents, "groups": {"by": "game", "size": 3}}
    schedule = Schedule(config(**changes))
    drawn: list[GameSpec] = []
    starts: list[int] = []
    for version in range(4):
        policy, past = PlayerId.policy(version), [*map(PlayerId.policy, range(version))]
        starts.append(schedule.next_game)
        drawn += [spec for _ in range(20) for spec in schedule.draw_group(policy, past)]
        if version == 1:
            schedule.shares = DrawConfig(self=0.1, past=0.1, fixed=0.8)
        if version == 2:
            schedule.leave_out("random")
    wanted = {1, 8, 59, 60, 61, 100, 170, 239}
    expected = [spec for spec in drawn if spec.game_id in wanted]
    assert schedule.drawn_again(wanted) == expected
    schedule.forget(min(wanted))
    assert schedule.drawn_again(wanted) == expected
    schedule.forget(starts[2] + 5)  # earlier games are not needed anymore
    later = [spec for spec in drawn if spec.game_id >= starts[2]]
    assert schedule.drawn_again({spec.game_id for spec in drawn}) == later
    state = ScheduleState.model_validate_json(schedule.state().model_dump_json(), strict=True)
    assert len(state.stretches) == 2
    other = Schedule(config(**changes))
    other.restore(state)
    assert other.drawn_again({spec.game_id for spec in drawn}) == later
    other.forget(starts[3])
    last = [spec for spec in drawn if spec.game_id >= starts[3]]
    assert other.drawn_again({spec.game_id for spec in drawn}) == last
    other.forget(None)
    assert other.drawn_again({*range(240)}) == [] and other.state().stretches == []


def test_redrawing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume redraws a bounded number of games, and a state that needs more is invalid."""
    monkeypatch.setattr(schedule_module, "MOST_AGAIN", 100)
    monkeypatch.setattr(schedule_module, "LONGEST_STRETCH", 20)
    schedule = Schedule(config())
    drawn = drawn_games(schedule, 500)
    assert schedule.oldest_again == 400
    schedule.forget(3)
    state = schedule.state()
    assert 380 < state.stretches[0].first <= 400
    assert schedule.drawn_again(range(500)) == drawn[state.stretches[0].first :]
    ScheduleState.model_validate_json(state.model_dump_json())
    monkeypatch.setattr(series, "MOST_AGAIN", 50)
    monkeypatch.setattr(series, "LONGEST_STRETCH", 20)
    with pytest.raises(ValidationError, match="too many games to draw again"):
        ScheduleState.model_validate_json(state.model_dump_json())


@every_row(
    "spoil",
    lambda state: state["now"].update(next_game=10**12),
    lambda state: state["now"].update(next_game=3),
    lambda state: state["stretches"].clear(),
    lambda state: state.update(since=None),
    lambda state: state["stretches"].reverse(),
)
def test_invalid_state_is_rejected(spoil: Callable[[dict[str, Any]], None]) -> None:
    schedule = Schedule(config())
    drawn_games(schedule, 20)
    schedule.shares = DrawConfig(self=1, past=0, fixed=0)
    drawn_games(schedule, 20)
    state = json.loads(schedule.state().model_dump_json())
    ScheduleState.model_validate_json(json.dumps(state))
    spoil(state)
    with pytest.raises(ValidationError):
        ScheduleState.model_validate_json(json.dumps(state))


def test_state_size_does_not_grow_with_games() -> None:
    schedule = Schedule(config())
    drawn_games(schedule, 10)
    few = len(schedule.state().model_dump_json())
    drawn_games(schedule, 2000)
    assert len(schedule.state().model_dump_json()) < few + 40


def test_opponent_env_and_seat_shares_match_the_config() -> None:
    games = [{"env": "TicTacToe-v0", "weight": 3}, {"env": "Nim-v0"}]
    specs = drawn_games(Schedule(config(games=games)), 4000)
    kinds: Counter[str] = Counter()
    policy_seats: Counter[int] = Counter()
    for spec in specs:
        others = [seat.player for seat in spec.seats if seat.player != POLICY]
        kinds["self" if not others else "fixed" if others == [RANDOM] else "past"] += 1
        if others:
            (trained,) = [place for place, seat in enumerate(spec.seats) if seat.trained]
            assert spec.seats[trained].player == POLICY
            policy_seats[trained] += 1
        else:
            assert all(seat.trained for seat in spec.seats)
    for kind, share in {"self": 0.5, "past": 0.35, "fixed": 0.15}.items():
        assert abs(kinds[kind] / 4000 - share) < 0.03
    assert abs(policy_seats[0] / policy_seats.total() - 0.5) < 0.05
    assert abs(sum(spec.env == "TicTacToe-v0" for spec in specs) / 4000 - 0.75) < 0.03


def test_ids_groups_and_seeds_are_unique() -> None:
    specs = drawn_games(Schedule(config()), 500)
    groups = [seat.group_id for spec in specs for seat in spec.seats if seat.trained]
    assert len(set(groups)) == len(groups)
    assert [spec.game_id for spec in specs] == list(range(500))
    assert len({spec.seed for spec in specs}) == 500


def test_policy_without_a_past_plays_itself_and_fixed_opponents() -> None:
    first, second = PlayerId.policy(0), PlayerId.policy(1)

    def players(schedule: Schedule, policy: PlayerId, past: list[PlayerId]) -> set[PlayerId]:
        return {seat.player for seat in schedule.draw_group(policy, past)[0].seats}

    schedule = Schedule(config())
    assert set().union(*(players(schedule, first, []) for _ in range(300))) == {first, RANDOM}
    only_past = Schedule(config(opponents={"draw": {"self": 0, "past": 1, "fixed": 0}}))
    assert players(only_past, first, []) == {first}
    assert players(only_past, second, [first]) == {first, second}


def test_seat_counts_and_opponent_temperature_are_respected() -> None:
    alone = Schedule(config(games=[{"env": "TowerOfHanoi-v0", "seats": 1}]))
    assert all([s.player for s in spec.seats] == [POLICY] for spec in drawn_games(alone, 20))
    three = Schedule(config(games=[{"env": "LiarsDice-v0", "seats": 3}]))
    for spec in drawn_games(three, 100):
        trained = [seat for seat in spec.seats if seat.trained]
        assert len(spec.seats) == 3
        assert len(trained) in (1, 3)
    fixed = [{"kind": "checkpoint", "path": "somewhere", "temperature": 0.3}]
    opponents = {"draw": {"self": 0, "past": 0, "fixed": 1}, "fixed": fixed}
    for spec in drawn_games(Schedule(config(opponents=opponents)), 10):
        temperatures = {seat.player: seat.temperature for seat in spec.seats}
        assert temperatures == {POLICY: 1.0, PlayerId("checkpoint:somewhere"): 0.3}


def test_past_opponents_come_from_the_given_pool() -> None:
    opponents = {"draw": {"self": 0, "past": 1, "fixed": 0}}
    schedule = Schedule(config(opponents=opponents, openings={"share": 1.0}))
    rival, pool = PlayerId.policy(2, "rival"), [PlayerId.policy(1, "rival"), PlayerId.policy(7)]
    specs = [spec for _ in range(50) for spec in schedule.draw_group(rival, pool)]
    for spec in specs:
        (trained,) = [seat.player for seat in spec.seats if seat.trained]
        assert trained == rival
        assert spec.opener is not None and spec.opener.player.name == "rival@0"
    others = {seat.player for spec in specs for seat in spec.seats if not seat.trained}
    assert others == set(pool)
    assert [as_record(json.loads(json.dumps(plain(spec))), GameSpec) for spec in specs] == specs
