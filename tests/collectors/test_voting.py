"""Majority vote: which answer wins, that it is recorded whole, and that evaluation alone votes."""

import pytest
from msgspec.structs import replace

from tests.helpers.builders import game, turn
from tests.helpers.collector import Scripted, collector, played
from tests.helpers.constrained import serving, sharp_model
from tests.helpers.groups import drawn_games
from tests.helpers.mistakes import refused
from tests.helpers.models import random_adapter, tiny_tokenizer
from tests.helpers.players import Recorder, model_player
from tests.helpers.records import flat, game_record
from tests.helpers.rows import every_row
from unstable.collectors.collector import Collector
from unstable.collectors.players.several import VotingPlayer
from unstable.config import GameConfig, RunConfig, parse
from unstable.games.game import Game
from unstable.league.evaluation import evaluation_games, evaluation_scores, rated_games
from unstable.league.schedule import Schedule
from unstable.records.games import read_game
from unstable.tracking.text import score_line
from unstable.types import Answer, GameResult
from unstable.types.seeds import derive_seed


async def vote(*texts: str) -> tuple[Answer, Recorder]:
    """Vote over the model's answers `texts`; returns the answer played and the engine."""
    engine, config = Recorder(*texts), GameConfig()
    position = Game(config, 0)
    voting = VotingPlayer(player=model_player(engine, parser="exact"), votes=len(texts))
    return await voting.act(position.observe(), position, seed=77), engine


@every_row(
    "texts, action, winner, votes",
    (["[4]", "[2]", "[2]"], "[2]", 1, 2),
    (["[1]", "[2]", "[2]", "[1]"], "[1]", 0, 2),  # a tie: the first sample
    (["[3]", "[2]", "[1]"], "[3]", 0, 1),
    (["what", "what", "[5]"], "[5]", 2, 1),  # an answer without an action has no vote
    (["what", "who", "who"], "", 0, 0),
)
async def test_majority_is_played(texts: list[str], action: str, winner: int, votes: int) -> None:
    answer, engine = await vote(*texts)
    assert (answer.action, answer.votes) == (action, votes)
    assert answer.text == texts[winner]
    ids = tiny_tokenizer().encode(texts[winner], add_special_tokens=False)
    assert answer.sampled is not None and answer.sampled.token_ids[:-1] == ids
    assert len(engine.requests) == len(texts)


async def test_first_sample_equals_play_without_voting() -> None:
    _, engine = await vote("[4]", "[2]", "[2]")
    seeds = [request.seed for request in engine.requests]
    assert seeds == [77, derive_seed(77, "vote", 1), derive_seed(77, "vote", 2)]
    assert len({str(request.prompt_ids) for request in engine.requests}) == 1


def config_of(votes: int, **evaluation: object) -> RunConfig:
    settings = {"games": 4, "votes": votes, **evaluation}
    data = {"eval": settings, "actors": {"games_in_flight": 4}}
    return parse(data | {"games": [{"env": "TicTacToe-v0", "prompt": "answer"}]})


def test_only_evaluated_version_votes() -> None:
    config = config_of(5, opponents=["base", "random"], temperature=[1.0, 0.0])
    for spec in evaluation_games(config, version=3):
        for seat in spec.seats:
            votes = 5 if seat.player.version == 3 and seat.temperature else 1
            assert seat.votes == votes, "greedy answers are equal"
    trained = drawn_games(Schedule(config), 50)
    assert {seat.votes for spec in trained for seat in spec.seats} == {1}


async def test_voting_is_reproducible() -> None:
    config = config_of(5, constrained=True)
    plays: list[list[GameResult]] = []
    for _ in range(2):
        model = sharp_model()
        async with serving(model) as engine:
            collect = Collector(config, engine, tiny_tokenizer())
            await engine.load(random_adapter(model, "main@0", seed=1))
            results = await played(collect.play(evaluation_games(config, 0)))
        plays.append([result for result in results if isinstance(result, GameResult)])
    first, second = (
        sorted((r.spec.game_id, [(t.seat, t.answer) for t in r.turns]) for r in each)
        for each in plays
    )
    assert first == second and len(first) == 4
    for result in plays[0]:
        for each in result.turns:
            if each.player.version is None:
                assert each.answer.votes is None
            else:
                assert each.answer.votes in range(1, 6)
    (row,) = evaluation_scores(0, plays[0])
    assert row.votes == 5 and row.agreement is not None and 0.2 <= row.agreement <= 1


async def test_only_the_version_samples_several_answers() -> None:
    config, engine = config_of(3, opponents=["base"]), Scripted()
    results = await played(
        collector(engine, **config.model_dump()).play(evaluation_games(config, 0))
    )
    assert all(isinstance(result, GameResult) for result in results)
    turns = [t for result in results if isinstance(result, GameResult) for t in result.turns]
    own = sum(each.player.version == 0 for each in turns)
    assert engine.asked.count("main@0") == 3 * own > 0
    assert engine.asked.count(None) == len(turns) - own


def test_votes_are_recorded_and_not_rated() -> None:
    config = config_of(5)
    results = []
    for spec in evaluation_games(config, 2):
        turns = [turn(0, 0, "main@2", votes=3), turn(0, 1, "main@2", votes=4)]
        results.append(replace(game(), spec=spec, turns=turns))
    (row,) = evaluation_scores(2, results)
    assert row.votes == 5 and row.agreement is not None
    assert row.agreement == pytest.approx(0.7)
    assert "by majority of 5 votes (70 % agree)" in score_line(row)
    assert rated_games(config, 2, results) == []
    record = game_record(results[0], [], 2, None)
    assert flat(record)["seats"][0]["votes"] == 5 and flat(record)["turns"][0]["votes"] == 3
    assert read_game("here", record).spec == results[0].spec


def test_scores_without_voting_have_no_agreement() -> None:
    spec = evaluation_games(config_of(1), 2)[0]
    result = replace(game(), spec=spec, turns=[turn(0, 0, "main@2")])
    (row,) = evaluation_scores(2, [result])
    assert (row.votes, row.agreement) == (1, None)
    assert "majority" not in score_line(row)
    assert rated_games(config_of(1), 2, [result]) == [result]


@every_row("votes", 0, -1, 2.5, "many")
def test_invalid_votes_are_rejected(votes: object) -> None:
    refused(r"^eval\.votes[^\n]*$", parse, {"eval": {"votes": votes}})
    refused("unknown key 'votes'", parse, {"sampling": {"votes": 5}})
