"""Teams: one player holds a team's seats, and a game counts once for the team."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers import builders
from tests.helpers.builders import brief
from tests.helpers.groups import drawn_games
from tests.helpers.loop import Begin, lines, make_context, played
from tests.helpers.mistakes import line_of
from tests.helpers.records import game_record
from tests.helpers.relay import GAME, ROLES, TEAMS
from tests.helpers.rows import every_row
from unstable.commands.prepare import check_games, prepare
from unstable.config import GameConfig, RunConfig, dump, parse
from unstable.games.check import check_game
from unstable.games.game import Game
from unstable.league.evaluation import evaluation_games, evaluation_scores, game_scores
from unstable.league.ratings import Registry
from unstable.league.schedule import Schedule
from unstable.loop.train import train
from unstable.records.games import read_game
from unstable.records.reading import read_rows
from unstable.tracking.play import PlayMetrics
from unstable.tracking.view import RecentGame
from unstable.types import GameResult, PlayerId
from unstable.types.play import PlayTally

RANDOM, POLICY = PlayerId("random"), PlayerId.policy(2)
UNEVEN = ((0, 3), (1,), (2, 4, 5))
"""Three teams, whose seats are not in a row."""
CODENAMES = {"env": "Codenames-v0", "seats": 4}


def config(**changes: Any) -> RunConfig:
    return parse({"seed": 3, "games": [GAME], **changes})


def uneven(**changes: Any) -> RunConfig:
    game = {"env": "LiarsDice-v0", "seats": 6, "teams": [list(team) for team in UNEVEN]}
    return config(games=[game], **changes)


def team_game(
    players: tuple[str, ...] = ("main@2", "main@2", "random", "random"),
    outcomes: tuple[float, ...] = (1.0, 1.0, -1.0, -1.0),
    teams: tuple[tuple[int, ...], ...] = TEAMS,
    **changes: Any,
) -> GameResult:
    result = builders.game(players, outcomes, turns=len(players), **changes)
    return replace(result, spec=replace(result.spec, teams=teams))


# Config


@every_row("teams", [[0, 1]], [[0, 1], [2, 4]], [[0, 1], [1, 2, 3]], [[0, 1, 2, 3], []])
def test_teams_that_do_not_partition_seats_are_rejected(teams: list[list[int]]) -> None:
    said = line_of(config, games=[GAME | {"teams": teams}])
    assert said == (
        f"games.0.teams = {teams}: each seat from 0 to 3 must be in exactly one team; "
        "correct teams, or seats"
    )


@every_row(
    "seating, words",
    (
        "tests.helpers.relay:twice",
        "returned [0, 0, 1, 2], not a permutation of 0 to 3; return",
    ),
    ("tests.helpers.relay:nobody", "tests.helpers.relay has no nobody"),
    ("tests.helpers.relay:TEAMS", "not callable"),
)
def test_invalid_seating_is_rejected(seating: str, words: str) -> None:
    said = line_of(check_game, GameConfig(**GAME | {"seating": seating}), "games.0")
    assert said.startswith(f"games.0.seating = '{seating}': ")
    assert words in said


def test_resolved_config_has_teams_of_known_games() -> None:
    games = [CODENAMES, {"env": "SecretMafia-v0", "seats": 9}, {"env": "Taboo-v0", "seats": 6}]
    games += [CODENAMES | {"name": "alone", "teams": [[0], [1], [2], [3]]}, {"env": "Nim-v0"}]
    made = parse({"games": games, "model": {"name": "tiny"}})
    assert {game.teams for game in made.games[:3]} == {()}
    resolved = prepare(made).config
    assert [game.teams for game in resolved.games] == [
        ((0, 1), (2, 3)),
        ((0, 1), (2, 3, 4, 5, 6, 7, 8)),
        ((0, 1, 2), (3, 4, 5)),
        ((0,), (1,), (2,), (3,)),
        (),
    ]
    assert "teams:" in dump(resolved)


# Seating


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), grouped=st.booleans())
def test_team_has_one_player_and_a_group_per_trained_seat(seed: int, grouped: bool) -> None:
    groups = {"by": "game", "size": 4 if grouped else 1}
    for made in (config(seed=seed, groups=groups), uneven(seed=seed, groups=groups)):
        group = drawn_games(Schedule(made), 1)
        assert len(group) == groups["size"]
        for spec in group:
            assert spec.teams == spec.sides == made.games[0].teams
            for side in spec.sides:
                assert len({spec.seats[seat].player for seat in side}) == 1
                assert len({spec.seats[seat].trained for seat in side}) == 1
            ids = [seat.group_id for seat in spec.seats if seat.trained]
            assert len(set(ids)) == len(ids)
            assert len(spec.trained_sides) in (1, len(spec.sides))
            assert spec.seats == group[0].seats and spec.seed == group[0].seed


def test_policy_plays_each_team_equally_often() -> None:
    for made, sides in ((config(), TEAMS), (uneven(), UNEVEN)):
        kinds: Counter[str] = Counter()
        places: Counter[tuple[int, ...]] = Counter()
        for spec in drawn_games(Schedule(made), 3000):
            others = {seat.player for seat in spec.seats} - {POLICY}
            kinds["self" if not others else "fixed" if RANDOM in others else "past"] += 1
            if others:
                places[spec.trained_sides[0]] += 1
        for kind, share in {"self": 0.5, "past": 0.35, "fixed": 0.15}.items():
            assert abs(kinds[kind] / 3000 - share) < 0.04
        assert all(abs(places[side] / places.total() - 1 / len(sides)) < 0.05 for side in sides)


def test_branching_team_game_trains_one_seat() -> None:
    groups = {"by": "branch", "size": 3}
    trained: Counter[int] = Counter()
    for spec in drawn_games(Schedule(config(groups=groups)), 400):
        (seat,) = [place for place, each in enumerate(spec.seats) if each.trained]
        (side,) = spec.trained_sides
        assert {spec.seats[mate].player for mate in side} == {POLICY}
        trained[seat] += 1
    assert set(trained) == {0, 1, 2, 3} and min(trained.values()) > 60


def test_each_deal_is_evaluated_from_every_team() -> None:
    for made, sides in ((config(eval={"games": 6}), TEAMS), (uneven(eval={"games": 6}), UNEVEN)):
        specs = evaluation_games(made, version=2)
        assert len(specs) == 6
        for first in range(0, 6, len(sides)):
            deal = specs[first : first + len(sides)]
            assert len({spec.seed for spec in deal}) == 1
            for side, spec in zip(sides, deal, strict=True):
                held = [place for place, seat in enumerate(spec.seats) if seat.player == POLICY]
                assert tuple(held) == side and spec.teams == sides


# Results


@every_row(
    "outcomes, forfeit, standings",
    ((1, 1, -1, -1), None, "win win loss loss"),
    ((0, 0, 0, 0), None, "draw draw draw draw"),
    ((3, 0, 1, 1), None, "win win loss loss"),  # by the team's mean outcome
    ((0.1, 0.2, 0.2, 0.1), None, "draw draw draw draw"),
    ((-1, -1, 0, 0), 1, "loss loss win win"),
    ((0, 0, 0, 0), 2, "win win loss loss"),  # a forfeit loses at any outcome
)
def test_teams_win_as_one(outcomes: tuple[float, ...], forfeit: int | None, standings: str) -> None:
    result = team_game(outcomes=outcomes, forfeit=forfeit)
    assert [result.standing(seat) for seat in range(4)] == standings.split()


def test_equal_mean_outcomes_tie_for_any_team_size() -> None:
    for value in (0.1, 1 / 3, 1e-9):
        result = team_game(("main@0",) * 10, (value,) * 10, ((0, 1, 2), tuple(range(3, 10))))
        assert {result.standing(seat) for seat in range(10)} == {"draw"}


@every_row("worth, standing", (1.0, "win"), (0.5, "draw"), (0.0, "loss"))
def test_single_team_plays_alone(worth: float, standing: str) -> None:
    together = {"env": "LiarsDice-v0", "seats": 2, "teams": [[0, 1]]}
    made = config(games=[together], eval={"games": 2})
    specs = [*drawn_games(Schedule(made), 5), *evaluation_games(made, 2)]
    assert {seat.player for spec in specs for seat in spec.seats} == {POLICY}
    assert len(specs) == 5 + 2
    result = team_game(("main@2",) * 2, (worth, worth), ((0, 1),))
    assert result.standing(0) == result.standing(1) == standing
    (row,) = evaluation_scores(2, [result])
    assert (row.opponent, row.games) == ("alone", 1)
    assert team_game(("main@2",) * 2, (worth, worth), ((0, 1),), forfeit=1).standing(0) == "loss"


PAIRS = [((1.0, -1.0), None), ((-1.0, 1.0), None), ((0.0, 0.0), None), ((-1.0, 0.0), 0)]


def pair_and_teams(outcomes: tuple[float, float], forfeit: int | None) -> list[GameResult]:
    """Return one game as two seats and as two teams; a team forfeits by its second member."""
    both = tuple(outcome for outcome in outcomes for _ in range(2))
    by = None if forfeit is None else 2 * forfeit + 1
    two = builders.game(("main@2", "random"), outcomes, turns=4, forfeit=forfeit)
    return [two, team_game(outcomes=both, forfeit=by)]


def test_team_evaluation_equals_two_seat_evaluation() -> None:
    """Scores, intervals and forfeits do not depend on the size of a team."""
    two, four = zip(*(pair_and_teams(*each) for each in PAIRS * 3), strict=True)
    (one,), (other,) = evaluation_scores(2, list(two)), evaluation_scores(2, list(four))
    assert one == other and (one.games, one.forfeits, one.losses) == (12, 3, 6)
    assert game_scores(2, four[:1]) == {0: 1.0}


def registry() -> Registry:
    made = Registry([RANDOM, PlayerId("expert")], anchor=RANDOM, pool_size=2)
    for version in range(3):
        made.add(PlayerId.policy(version))
    made.announce(PlayerId.policy(2))
    return made


def test_team_ratings_equal_two_seat_ratings() -> None:
    seats, teams = registry(), registry()
    for outcomes, forfeit in PAIRS * 4:
        two, four = pair_and_teams(outcomes, forfeit)
        seats.record([two])
        teams.record([four])
    assert teams.ratings() == seats.ratings()
    (row,) = [row for row in teams.ratings() if row.player == POLICY]
    assert (row.games, row.wins, row.draws, row.losses, row.forfeits) == (16, 4, 4, 8, 4)
    (anchor,) = [row for row in teams.ratings() if row.player == RANDOM]
    assert anchor.mu == 25 and anchor.games == 16


def test_team_is_rated_as_one_side() -> None:
    """Random holds two of three teams: it enters with the mean of two, not of its four seats."""
    made = registry()
    players = ("random", "main@2", "random", "random", "random", "random")
    made.record([team_game(players, (1.0, 0.1, -1.0, 1.0, -1.0, -1.0), UNEVEN)])
    (row,) = [row for row in made.ratings() if row.player == POLICY]
    assert (row.games, row.wins) == (1, 1) and row.mu > 25
    made = registry()
    made.record([team_game(("main@2",) * 4)])
    assert [row.games for row in made.ratings()] == [0]


def test_metrics_count_a_team_game_once() -> None:
    won = team_game(env="Relay")
    forfeited = team_game(outcomes=(-1.0, -1.0, 0.0, 0.0), forfeit=1, env="Relay")
    mirror = team_game(("main@2",) * 4, env="Relay")
    metrics, tally = PlayMetrics(config()), PlayTally.empty()
    for result in (won, forfeited, mirror):
        tally.add_game(result, [])
    metrics.tally.add(tally)
    row = metrics.take(1.0)
    assert row["collect/versus/random/games"] == 2
    assert row["collect/versus/random/win"] == row["collect/versus/random/forfeit"] == 0.5
    assert row["collect/versus/self/games"] == 2 and row["collect/versus/self/win"] == 0.5
    assert row["collect/outcome/Relay/1"] == pytest.approx(1 / 3)  # by seat, as baselines are
    shown = RecentGame.of(brief(forfeited), 0.0)
    assert shown.standings == ["loss"] and shown.forfeited and shown.players == {RANDOM}


def test_recorded_game_has_its_teams() -> None:
    result = team_game()
    assert read_game("here", game_record(result, [], 2, 0)).spec == result.spec


# Play


def test_seats_are_roles_for_any_player_number() -> None:
    orders, numbers = set(), set()
    for seed in range(12):
        game = Game(GameConfig(**GAME), seed)
        order, said = [], dict.fromkeys(range(4), 0)
        chance = random.Random(seed)
        while not game.done:
            observation = game.observe()
            seat, number = observation.seat, game.env.raw.state.current_player_id
            assert seat == game.seat
            assert f"You are Player {number}, the {ROLES[seat]}." in observation.rules
            assert sum(event.startswith("You: ") for event in observation.events) == 0
            said[seat] = chance.randrange(4)
            game.step(f"[{said[seat]}]")
            order.append(seat)
            numbers.add((seat, number))
        orders.add(tuple(order))
        red = (said[0] + said[1] > said[2] + said[3]) - (said[0] + said[1] < said[2] + said[3])
        assert game.payoffs == game.outcomes == [red, red, -red, -red]
    assert orders == {(0, 2, 1, 3)}
    assert len(numbers) > 8, "roles are assigned at random"


def test_custom_payoffs_are_mapped_from_numbers_to_seats() -> None:
    for seed in range(6):
        given = GAME | {"payoffs": "tests.helpers.relay:apart", "payoff_scale": 3.0}
        game = Game(GameConfig(**given), seed)
        while not game.done:
            game.step(f"[{game.seat}]")
        assert game.payoffs == [0.0, 1.0, 2.0, 3.0]


def test_forfeit_counts_for_the_whole_team() -> None:
    policy = {"forfeit_reward": -1.5, "others_reward": 0.5}
    for seed in range(6):
        game = Game(GameConfig(**GAME, invalid_moves=policy), seed)
        game.step("[1]")
        number = game.env.raw.state.current_player_id
        assert game.step("nothing").done
        assert game.forfeit == 2 and game.outcomes == [0.5, 0.5, -1.5, -1.5]
        assert game.reason.startswith(f"Player {number} forfeits ")
    undeclared = Game(GameConfig(env="SecretMafia-v0", seats=6, invalid_moves=policy), 0)
    assert undeclared.step("nothing").done
    assert undeclared.outcomes == [-1.5, -1.5, 0.5, 0.5, 0.5, 0.5]


RUN: dict[str, Any] = {
    "games": [GAME],
    "opponents": {"draw": {"self": 0.4, "past": 0.3, "fixed": 0.3}, "fixed": [{"kind": "random"}]},
    "actors": {"games_in_flight": 8},
}


@pytest.mark.parametrize("isolated", [False, True])
async def test_run_with_teams_records_seats_and_ratings(begin: Begin, isolated: bool) -> None:
    changes = RUN | {"games": [GAME | {"isolated": isolated}]}
    context = begin(**changes)
    check_games(context.config)
    await train(context)
    games = played(context.folder)
    sizes = set()
    for game in games:
        assert game["teams"] == [[0, 1], [2, 3]]
        assert game["players"][0] == game["players"][1] and game["players"][2] == game["players"][3]
        sizes.add(sum("group_id" in seat for seat in game["seats"]))
        for turn in game["turns"]:
            assert f", the {ROLES[turn['seat']]}." in turn["observation"]
            assert turn["player"] == game["players"][turn["seat"]]
    assert sizes == {2, 4}
    trained = {s["seat"] for k in (1, 2, 3) for s in lines(context.folder.samples(k))}
    assert trained <= {0, 1, 2, 3} and len(trained) > 1
    assert read_rows(context.folder.metrics)[0]["eval/Relay/random/sampled/games"] == 4
    rated = {row.player.name: row.games for row in context.registry.ratings()}
    compared = [g for g in [*games, *played(context.folder, "eval")] if len(set(g["players"])) == 2]
    assert sum(rated.values()) == 2 * len(compared)


async def test_team_games_fill_groups(tiny_folder: Path, tmp_path: Path) -> None:
    for by in ("game", "branch"):
        changes = RUN | {"groups": {"by": by, "size": 2}, "loop": {"mode": "sync", "steps": 1}}
        context = make_context(tiny_folder, tmp_path / by, **changes)
        assert await train(context) == "all updates made"
        groups = Counter(sample["group"] for sample in lines(context.folder.samples(1)))
        assert groups and context.failures == 0
