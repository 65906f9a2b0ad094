"""Best of N: the choice of the answer, the players that use it, and the gain by a good judge."""

import asyncio
from collections.abc import Sequence
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.endpoint import Reply, Server
from tests.helpers.judged import TURNS
from tests.helpers.loop import make_actor, publish_start
from tests.helpers.loop import make_context as context_of
from tests.helpers.players import Recorder, model_player
from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from unstable.collectors.players.several import BestOfPlayer
from unstable.commands.prepare import prepare
from unstable.config import ConfigError, GameConfig, RunConfig, parse
from unstable.games.game import Game
from unstable.league.evaluation import evaluation_games, evaluation_scores, rated_games
from unstable.loop.train import train
from unstable.records.folder import RunFolder
from unstable.records.games import read_game
from unstable.records.reading import read_rows
from unstable.runtime.candidates import Candidates
from unstable.runtime.local import LocalActor
from unstable.types import Answer, GameFailure, GameResult, Observation, PlayerId, Turn
from unstable.types.seeds import derive_seed

JUDGE = f"{__name__}:nim_sum"


async def nim_sum(result: GameResult, turn: Turn) -> float | None:
    """Score a move in Nim: 1 if it leaves a lost position, 0 if not, -1 if it is illegal."""
    await asyncio.sleep(0)
    piles = list(map(int, turn.answer.observation.splitlines()[1].split()))
    words = turn.answer.action.strip("[]").split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None
    pile, taken = map(int, words)
    if pile >= len(piles) or not 0 < taken <= piles[pile]:
        return -1.0
    piles[pile] -= taken
    return float(reduce(xor, piles) == 0)


async def answered(values: dict[str, float | None], *texts: str) -> tuple[Answer, list[str], Any]:
    """Return the answer played out of `texts`, the answers the judge scored, and the engine."""
    engine, asked = Recorder(*texts), []

    async def judge(game: GameConfig, observation: Observation, answer: Answer) -> float | None:
        asked.append(answer.text)
        return values[answer.text]

    player = model_player(engine, parser="exact")
    best_of = BestOfPlayer(player=player, answers=len(texts), judge=judge)
    position = Game(GameConfig(), 0)
    return await best_of.act(position.observe(), position, seed=77), asked, engine


@every_row(
    "texts, played, judged",
    (["[1]", "[2]", "[3]"], "[2]", ["[1]", "[2]", "[3]"]),
    (["[4]", "[2]", "[5]"], "[2]", ["[4]", "[2]", "[5]"]),  # the first among ties
    (["[5]", "[4]", "[2]"], "[5]", ["[5]", "[4]", "[2]"]),
    (["[1]", "[1]", "[1]"], "[1]", []),  # no choice
    (["[1]", "[2]", "[1]"], "[2]", ["[1]", "[2]"]),  # equal answers are judged once
    (["[6]", "[1]", "[6]"], "[1]", ["[6]", "[1]"]),  # [6] has no value
    (["[6]", "[7]"], "[6]", ["[6]", "[7]"]),
)
async def test_best_answer_is_played(texts: list[str], played: str, judged: list[str]) -> None:
    values = {"[1]": 0.0, "[2]": 1.0, "[3]": -1.0, "[4]": 0.5, "[5]": 1.0, "[6]": None, "[7]": None}
    answer, asked, engine = await answered(values, *texts)
    assert answer.text == played
    assert asked == judged
    seeds = [request.seed for request in engine.requests]
    assert seeds == [77, *(derive_seed(77, "best of", i) for i in range(1, len(texts)))]


def nim(**changes: Any) -> dict[str, Any]:
    return {
        "model": {"name": "tiny", "init": "fresh", "dtype": "float32"},
        "games": [{"env": "Nim-v0", "prompt": "compact"}],
        "sampling": {"max_tokens": 6},
        "actors": {"games_in_flight": 32},
        "eval": {"games": 32, "opponents": ["random"], "exploitability": {"every": 0}},
        "loop": {"mode": "sync"},
        **changes,
    }


async def scored(tmp_path: Path, config: RunConfig) -> tuple[float, list[GameResult]]:
    """The score of version 0, which plays legal moves evenly, with the games."""
    actor = make_actor(config, RunFolder(tmp_path))
    specs = evaluation_games(config, version=0)
    try:
        await actor.engine.load(_start(config))
        results = [each async for each in actor.play(specs)]
    finally:
        await actor.close()
    return evaluation_scores(0, games_of(results))[0].score, games_of(results)


def games_of(results: Sequence[GameResult | GameFailure]) -> list[GameResult]:
    assert not [each.error for each in results if isinstance(each, GameFailure)]
    return [each for each in results if isinstance(each, GameResult)]


def _start(config: RunConfig) -> Any:
    from unstable.learners.model.load import load_policy
    from unstable.learners.ranks import ALONE

    return load_policy(config.model, config.learner, 0, None, ALONE).trained.export("main@0")


async def test_perfect_judge_makes_random_player_strong(tmp_path: Path) -> None:
    plain = nim()
    best = {**plain["eval"], "best_of": {"answers": 48, "judge": JUDGE}}
    before, _ = await scored(tmp_path, prepare(parse(plain)).config)
    config = prepare(parse(plain | {"eval": best})).config
    after, results = await scored(tmp_path, config)
    assert before < 0.75 < 0.9 < after
    for result in results:
        assert {seat.best_of for seat in result.spec.seats} == {1, 48}
        assert read_game("here", game_record(result, [], 0, None)).spec == result.spec
    assert rated_games(config, 0, results) == []


async def test_checkpoint_opponent_plays_best_of_n(tmp_path: Path) -> None:
    """The start as an opponent, with the judge: the version loses to it."""
    from unstable.models.adapters import write_adapter

    config = prepare(parse(nim())).config
    (tmp_path / "start").mkdir()
    write_adapter(_start(config), tmp_path / "start")
    opponent: dict[str, Any] = {
        "kind": "checkpoint",
        "name": "chosen",
        "path": str(tmp_path / "start"),
    }
    opponent |= {"best_of": {"answers": 48, "judge": JUDGE}}
    changes: dict[str, Any] = {"opponents": {"fixed": [opponent]}}
    changes["eval"] = {**nim()["eval"], "opponents": ["chosen"]}
    config = prepare(parse(nim(**changes))).config
    assert list(config.candidate_judges) == ["opponents.fixed.0"]
    actor = make_actor(config, RunFolder(tmp_path / "run"))
    try:
        await actor.load_adapters()
        await actor.engine.load(_start(config))
        results = [each async for each in actor.play(evaluation_games(config, version=0))]
    finally:
        await actor.close()
    (score, *_) = evaluation_scores(0, games_of(results))
    assert score.score < 0.2


async def test_service_judges_best_of_n_in_evaluation(tiny_folder: Path, tmp_path: Path) -> None:
    server = Server()
    server.replies = [Reply(body=lambda asked: {"values": [0.5] * len(asked["items"])})]
    judges = {"service": {"kind": TURNS, "args": {"url": server.url}}}
    evaluation = {"every": 1, "games": 4, "best_of": {"answers": 4, "judge": "service"}}
    context = context_of(tiny_folder, tmp_path, judges=judges, eval=evaluation)
    try:
        (actor,) = context.actors
        assert isinstance(actor, LocalActor)
        await publish_start(context)
        specs = evaluation_games(context.config, version=0)
        results = [each async for each in actor.play(specs)]
        asked = actor._candidates.take_asked()
        await actor.close()
    finally:
        server.close()
    assert games_of(results)
    assert asked.counts["best_of.eval"]["calls"] >= 1
    items = [item for request in server.bodies for item in request["items"]]
    assert items and {len(item["turns"]) for item in items} == {1}
    assert {item["env"] for item in items} == {spec.env for spec in specs}


async def test_judge_calls_and_spend_are_logged_as_metrics(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "any")
    server = Server()
    usage = {"prompt_tokens": 1000, "completion_tokens": 10}
    choices = [{"message": {"content": "[[5]]"}}]
    server.replies = [Reply(body=lambda asked: {"choices": choices, "usage": usage})]
    args = {"base_url": server.url, "model": "any", "api_key_env": "A_KEY", "price_prompt": 2.0}
    judges = {"strict": {"kind": "llm", "args": args, "cache": "none"}}
    changes: dict[str, Any] = {"judges": judges, "loop": {"mode": "sync", "steps": 2}}
    changes["eval"] = {"every": 1, "games": 4, "best_of": {"answers": 4, "judge": "strict"}}
    context = context_of(tiny_folder, tmp_path, **changes)
    try:
        await train(context)
        (actor,) = context.actors
        assert isinstance(actor, LocalActor)
        left = actor._candidates.take_asked().counts["best_of.eval"]
        await actor.close()
    finally:
        server.close()
    rows = read_rows(context.folder.metrics)
    assert rows[0]["judge/best_of.eval/calls"] == 0
    calls = sum(row["judge/best_of.eval/calls"] for row in rows)
    assert calls > 0 and calls + left["calls"] == len(server.bodies)
    spend = sum(row["judge/best_of.eval/spend"] for row in rows)
    assert spend == pytest.approx(calls * 1000 * 2.0 / 1e6)


async def test_failing_judge_follows_on_failure(tiny_folder: Path, tmp_path: Path) -> None:
    server = Server()
    server.replies = [Reply(body=lambda asked: {"values": ["high"]})]
    for on_failure, failed in (("drop", True), ("zero", False)):
        judge = {"kind": TURNS, "args": {"url": server.url}, "on_failure": on_failure}
        context = context_of(
            tiny_folder,
            tmp_path / on_failure,
            judges={"high": judge},
            eval={"games": 2, "best_of": {"answers": 4, "judge": "high"}},
        )
        (actor,) = context.actors
        assert isinstance(actor, LocalActor)
        await publish_start(context)
        specs = evaluation_games(context.config, version=0)
        results = [each async for each in actor.play(specs)]
        await actor.close()
        assert all(isinstance(each, GameResult) != failed for each in results)
    server.close()


def seat_judge(result: GameResult, seat: int) -> float:
    return 0.0


JUDGES = {
    "seats": {"kind": f"{__name__}:seat_judge"},
    "pairs": {"kind": "llm", "args": {"engine": "base", "mode": "pairwise"}},
}


@every_row(
    "best_of, problem",
    ({"answers": 2}, "answers = 2: no judge to choose the best"),
    ({"judge": JUDGE}, ": only one answer"),
    ({"answers": 2, "judge": "nobody"}, "unknown reward term"),
    ({"answers": 2, "judge": "length"}, "must score single turns"),
    ({"answers": 2, "judge": f"{__name__}:seat_judge"}, "must score single turns"),
    ({"answers": 2, "judge": "seats"}, "must score single turns"),
    ({"answers": 2, "judge": "pairs"}, "'pairs' judges turns, but judges.pairs.args.mode"),
    ({"answers": 2, "judge": "llm"}, "unknown reward term"),
)
def test_invalid_best_of_settings_are_rejected(best_of: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        config = parse({"eval": {"best_of": best_of}, "judges": JUDGES})
        Candidates(config).check()
    assert "\n" not in str(raised.value) and "eval.best_of" in str(raised.value)


def test_votes_and_best_of_conflict() -> None:
    with pytest.raises(ConfigError, match="conflicts with best_of.answers = 2"):
        parse({"eval": {"votes": 3, "best_of": {"answers": 2, "judge": JUDGE}}})


def test_best_of_skips_greedy_seats_and_opponents() -> None:
    best_of = {"answers": 4, "judge": JUDGE}
    config = parse({"eval": {"best_of": best_of, "temperature": [1.0, 0.0]}})
    version = PlayerId.policy(2)
    seats = [seat for spec in evaluation_games(config, version=2) for seat in spec.seats]
    own = {(seat.temperature, seat.best_of) for seat in seats if seat.player == version}
    assert own == {(1.0, 4), (0.0, 1)}
    assert {seat.best_of for seat in seats if seat.player != version} == {1}
