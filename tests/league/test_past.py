"""The worst case against past versions: kept during a run, and played in evaluations."""

import json
import random
from collections import Counter

import pytest
from msgspec.structs import replace

from tests.helpers.builders import brief, game
from tests.helpers.rows import every_row
from unstable.config import ConfigError, parse
from unstable.league.evaluation import evaluation_games, evaluation_scores
from unstable.league.fit import ranking
from unstable.league.guard import Guard
from unstable.league.past import PastResults, PastState, tallies
from unstable.types import BASE, PAST, GameResult, GameSpec, PlayerId
from unstable.types.tallies import FEWEST, least_against_past


def met(newest: int, chance: random.Random) -> list[GameResult]:
    """Games of a run: versions against any before them, themselves, the base and random."""
    games = []
    for version in range(newest + 1):
        for _ in range(60):
            kinds = [f"main@{chance.randint(0, version)}", "random", "base"]
            players = [f"main@{version}", chance.choices(kinds, [8, 1, 1])[0]]
            chance.shuffle(players)
            outcomes = chance.choice([[1.0, -1.0], [0.0, 0.0], [-1.0, 1.0]])
            games.append(game(players, outcomes, forfeit=chance.choice([None, None, 0, 1])))
    return games


@every_row("newest", 1, 9, 34)
def test_past_results_match_all_games_in_bounded_memory(newest: int) -> None:
    """In any order of a version's games, through a state's JSON, in bounded memory."""
    chance = random.Random(newest)
    games = met(newest, chance)
    whole = least_against_past(tallies(filter(None, map(ranking, games))))
    late = PastResults()
    for first in range(0, len(games), 60):
        of_version = games[first : first + 60]
        chance.shuffle(of_version)
        late.record(map(brief, of_version))
        text = late.state().model_dump_json()
        late = PastResults()
        late.restore(PastState.model_validate_json(text, strict=True))
    assert late.least() == whole and whole["main"].compared > 0
    kept = json.loads(late.state().model_dump_json())["results"]
    assert len(kept) <= 1 + newest // 10, "older ones are never needed again"


def test_policies_have_separate_pasts_and_openings_do_not_count() -> None:
    results = PastResults()
    results.record([game(["main@3", "other@1"])] * 20)
    results.record([_opened(game(["main@3", "main@1"]))] * 20)
    results.record([game(["main@3", "main@3"]), game(["main@3", "random"])])
    assert results.least() == {}
    results.record([game(["other@2", "other@1"], [-1.0, 1.0])] * FEWEST)
    results.record([game(["main@1", "main@3"], [-1.0, 1.0])] * FEWEST)
    found = results.least()
    assert {name: each.score.mean for name, each in found.items()} == {"main": 1.0, "other": 0.0}
    assert found["other"].opponent == "other@1"


def _opened(result: GameResult) -> GameResult:
    opener = result.spec.seats[0]
    return replace(result, spec=replace(result.spec, opening=1, opener=opener))


# In evaluations


def versions(*numbers: int) -> list[PlayerId]:
    return list(map(PlayerId.policy, numbers))


def of_past(specs: list[GameSpec], version: int) -> dict[int, int]:
    """Games against each past version."""
    players = [
        seat.player.version
        for spec in specs
        for seat in spec.seats
        if seat.player.version not in (None, version)
    ]
    return dict(Counter(player for player in players if player is not None))


@every_row(
    "games, past, met",
    (16, 32, {31: 8, 0: 8}),
    (32, 32, {31: 8, 21: 8, 10: 8, 0: 8}),
    (32, 2, {1: 16, 0: 16}),
    (4, 32, {31: 4}),
    (30, 32, {31: 10, 15: 10, 0: 10}),
    (16, 0, {}),
)
def test_game_budget_is_split_over_evenly_spaced_versions(games, past, met):
    config = parse({"eval": {"games": games, "opponents": ["past"]}})
    assert of_past(evaluation_games(config, 40, versions(*range(past))), 40) == met


def test_games_against_the_past_come_last_and_swap_seats() -> None:
    """All other games keep the numbers under which version 0 played them."""
    given = {"games": 16, "temperature": [1.0, 0.0]}
    config = parse({"eval": {**given, "opponents": ["past", "random", "base"]}})
    without = parse({"eval": {**given, "opponents": ["random", "base"]}})
    specs = evaluation_games(config, 5, versions(0, 1, 2, 3, 4))
    others = evaluation_games(without, 5)
    assert specs[: len(others)] == others and len(specs) == len(others) + 2 * 16
    assert len(evaluation_games(config, 0)) == len(others)
    assert [spec.game_id for spec in specs] == list(range(len(specs)))
    played = specs[len(others) :]
    for one, other in zip(played[::2], played[1::2], strict=True):
        assert one.seed == other.seed and one.seats == other.seats[::-1]
    seeds = {spec.seed for spec in others}
    assert {spec.seed for spec in played} == seeds, "each version has its own of these deals"
    assert len({(spec.seed, spec.seats) for spec in played}) == len(played)
    assert not any(seat.trained for spec in played for seat in spec.seats)


def test_single_seat_games_are_not_played_against_the_past() -> None:
    alone = {"games": [{"env": "Sokoban-v0", "seats": 1}], "eval": {"opponents": ["past"]}}
    specs = evaluation_games(parse(alone), 3, versions(0, 1, 2))
    assert [len(spec.seats) for spec in specs] == [1] * 16


def test_guard_ignores_scores_against_the_past() -> None:
    config = parse({"eval": {"games": 16, "opponents": ["random", "past"]}})
    guard = Guard(config)
    for version, lost in ((4, False), (8, True)):
        specs = evaluation_games(config, version, versions(*range(version)))
        results = [_played(spec, PlayerId.policy(version), lost) for spec in specs]
        scores = evaluation_scores(version, results)
        assert [(each.opponent, each.games) for each in scores] == [("random", 16), (PAST, 16)]
        assert [each.score for each in scores] == [1.0, 0.0 if lost else 1.0]
        assert scores[1].gain is None
        guard.score(scores)
    assert guard.best == 8, "its score against random is not worse"


def _played(spec: GameSpec, own: PlayerId, lost: bool) -> GameResult:
    """Return a game won against random, and lost or won against the past."""
    is_past = all(seat.player.version is not None for seat in spec.seats)
    sign = -1.0 if lost and is_past else 1.0
    outcomes = [sign if seat.player == own else -sign for seat in spec.seats]
    return replace(game(), spec=spec, outcomes=outcomes)


def test_opponent_name_past_is_reserved() -> None:
    assert parse({"eval": {"opponents": "past"}}).eval.opponents == ["past"]
    assert BASE.name != PAST
    with pytest.raises(ConfigError, match=": reserved name; choose another"):
        parse({"opponents": {"fixed": [{"kind": "random", "name": "past"}]}})
