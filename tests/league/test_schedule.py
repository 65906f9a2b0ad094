"""Who plays what next is decided by the seed alone."""

import json
from collections import Counter

from unstable.config import RunConfig, parse
from unstable.league.schedule import Schedule, ScheduleState
from unstable.records.games import read_spec, spec_record
from unstable.types import GameSpec, PlayerId

RANDOM = PlayerId("random")
POLICY = PlayerId.policy(2)


def config(**changes: object) -> RunConfig:
    return parse({"seed": 3, **changes})


def draw(schedule: Schedule, count: int) -> list[GameSpec]:
    return [
        spec
        for _ in range(count)
        for spec in schedule.draw_group(
            PlayerId.policy(2), [PlayerId.policy(0), PlayerId.policy(1)]
        )
    ]


def test_the_same_seed_draws_the_same_games_and_another_seed_others() -> None:
    assert draw(Schedule(config()), 50) == draw(Schedule(config()), 50)
    assert draw(Schedule(config()), 50) != draw(Schedule(parse({"seed": 4})), 50)


def test_state_continues_the_series() -> None:
    schedule = Schedule(config())
    draw(schedule, 20)
    other = Schedule(config())
    other.restore(ScheduleState.model_validate_json(schedule.state().model_dump_json()))
    assert draw(other, 20) == draw(schedule, 20)


def test_shares_of_opponents_games_and_seats_are_as_configured() -> None:
    games = [{"env": "TicTacToe-v0", "weight": 3}, {"env": "Nim-v0"}]
    specs = draw(Schedule(config(games=games)), 4000)
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


def test_ids_groups_and_seeds_are_never_used_twice() -> None:
    specs = draw(Schedule(config()), 500)
    groups = [seat.group_id for spec in specs for seat in spec.seats if seat.trained]
    assert len(set(groups)) == len(groups)
    assert [spec.game_id for spec in specs] == list(range(500))
    assert len({spec.seed for spec in specs}) == 500


def test_without_a_past_the_policy_plays_itself_and_fixed_opponents() -> None:
    schedule = Schedule(config())
    players = {
        seat.player
        for _ in range(300)
        for seat in schedule.draw_group(PlayerId.policy(0), [])[0].seats
    }
    assert players == {PlayerId.policy(0), RANDOM}
    only_past = Schedule(config(opponents={"draw": {"self": 0, "past": 1, "fixed": 0}}))
    assert {seat.player for seat in only_past.draw_group(PlayerId.policy(0), [])[0].seats} == {
        PlayerId.policy(0)
    }
    both = {PlayerId.policy(0), PlayerId.policy(1)}
    assert {
        seat.player
        for seat in only_past.draw_group(PlayerId.policy(1), [PlayerId.policy(0)])[0].seats
    } == both


def test_one_and_three_seats() -> None:
    alone = Schedule(config(games=[{"env": "TowerOfHanoi-v0", "seats": 1}]))
    assert all([s.player for s in spec.seats] == [POLICY] for spec in draw(alone, 20))
    three = Schedule(config(games=[{"env": "LiarsDice-v0", "seats": 3}]))
    for spec in draw(three, 100):
        trained = [seat for seat in spec.seats if seat.trained]
        assert len(spec.seats) == 3
        assert len(trained) in (1, 3)


def test_a_fixed_models_own_temperature_is_used() -> None:
    fixed = [{"kind": "checkpoint", "path": "somewhere", "temperature": 0.3}]
    opponents = {"draw": {"self": 0, "past": 0, "fixed": 1}, "fixed": fixed}
    for spec in draw(Schedule(config(opponents=opponents)), 10):
        temperatures = {seat.player: seat.temperature for seat in spec.seats}
        assert temperatures == {POLICY: 1.0, PlayerId("checkpoint:somewhere"): 0.3}


def test_past_opponents_are_those_of_the_policies_that_are_named() -> None:
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
    assert [read_spec(json.loads(json.dumps(spec_record(spec)))) for spec in specs] == specs
