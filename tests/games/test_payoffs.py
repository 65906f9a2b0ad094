"""Test payoffs of a version in games that pay chips or points, and their confidence intervals."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.helpers.builders import game
from tests.helpers.rows import every_row
from tests.helpers.tracking import make_score, make_tracker, printed
from unstable.collectors.play import play_game
from unstable.collectors.players.programs import ExpertPlayer, RandomPlayer, RulesPlayer
from unstable.commands.card import Export, model_card
from unstable.config import RunConfig, parse
from unstable.league.evaluation import (
    evaluation_games,
    evaluation_scores,
    game_payoffs,
    game_scores,
)
from unstable.loop.train import state, train
from unstable.records.reading import read_rows
from unstable.report.run import Run
from unstable.tracking.text import gain_text, payoff_text, score_line
from unstable.types import GameResult, PlayerId
from unstable.types.intervals import _student, student_interval

LEDUC = {"env": "unstable.games.catalog.leduc:Leduc", "name": "Leduc"}
KUHN = {"env": "unstable.games.catalog.kuhn:KuhnPoker", "name": "Kuhn", "args": {"max_rounds": 1}}
DILEMMA = {"env": "IteratedPrisonersDilemma-v0", "name": "Dilemma"}


def configured(env: dict[str, Any], games: int = 256) -> RunConfig:
    return parse({"games": [env], "eval": {"games": games, "opponents": ["random"]}})


async def evaluated(config: RunConfig, version: int, player: object) -> list[GameResult]:
    """The evaluation's games, with a bot in the version's seats and a random one in the others."""
    results = []
    for spec in evaluation_games(config, version):
        own = PlayerId.policy(version)
        players = [player if seat.player == own else RandomPlayer() for seat in spec.seats]
        results.append(await play_game(spec, config.games[0], players, config.seed))  # type: ignore[arg-type]
    return results


@pytest.mark.parametrize(
    ("env", "player"), [(LEDUC, ExpertPlayer()), (KUHN, ExpertPlayer()), (DILEMMA, RulesPlayer())]
)
async def test_better_player_wins_chips_or_points(env: dict[str, Any], player: object) -> None:
    results = await evaluated(configured(env), 3, player)
    (row,) = evaluation_scores(3, results)
    action_values = [
        result.payoffs[seat]
        for result in results
        for seat, each in enumerate(result.spec.seats)
        if each.player == PlayerId.policy(3)
    ]
    assert row.payoff is not None and row.payoff == pytest.approx(np.mean(action_values))
    assert row.payoff_low is not None and row.payoff_high is not None
    assert 0 < row.payoff_low < row.payoff < row.payoff_high
    assert f" · payoff {row.payoff:+.2f} ({row.payoff_low:+.2f} to " in score_line(row)


async def test_payoff_gain_is_paired_with_version_0() -> None:
    """The gain is how much more the expert wins than a random player in the same deals."""
    config = configured(LEDUC, games=1024)
    before = await evaluated(config, 0, RandomPlayer())
    after = await evaluated(config, 8, ExpertPlayer())
    first = game_scores(0, before), game_payoffs(0, before)
    (same,) = evaluation_scores(0, before, *first)
    assert (same.payoff_gain, same.payoff_gain_low) == (0.0, None), "no deals differ: no interval"
    (start,), (row,) = evaluation_scores(0, before), evaluation_scores(8, after, *first)
    assert start.payoff is not None and start.payoff_gain is None and row.payoff is not None
    assert row.payoff_gain == pytest.approx(row.payoff - start.payoff)
    assert row.payoff_gain_low is not None and row.payoff_gain_low > 0
    assert f", payoff {row.payoff_gain:+.2f} ({row.payoff_gain_low:+.2f} to " in gain_text(row)


async def test_game_without_payoffs_prints_no_payoff() -> None:
    config = configured({"env": "TicTacToe-v0"}, games=8)
    results = await evaluated(config, 1, ExpertPlayer())
    assert {result.stakes for result in results} == {None}
    (row,) = evaluation_scores(1, results, game_scores(1, results), game_payoffs(1, results))
    assert {row.payoff, row.payoff_low, row.payoff_high, row.payoff_gain} == {None}
    assert payoff_text(row) == "" and "payoff" not in score_line(row)
    assert gain_text(make_score(1)) == ""


def paid(
    payoffs: Sequence[float], *, deal: int, stakes: float = 13.0, seat: int = 0, number: int = 0
) -> GameResult:
    players = ("main@2", "random") if seat == 0 else ("random", "main@2")
    result = game(players, purpose="eval", game_id=number)
    spec = replace(result.spec, seed=deal)
    return replace(result, spec=spec, payoffs=list(payoffs), outcomes=list(payoffs), stakes=stakes)


def test_deal_counts_as_one_observation() -> None:
    """Luck cancels in a deal: one seat's gain by its cards is the other's in the swapped game."""
    results = []
    for deal in range(8):
        luck, skill = 6.0 * (-1) ** deal, 0.1 * deal
        for seat in (0, 1):
            own = (luck if seat == 0 else -luck) + skill
            payoffs = (own, -own) if seat == 0 else (-own, own)
            results.append(paid(payoffs, deal=deal, seat=seat, number=2 * deal + seat))
    (row,) = evaluation_scores(2, results)
    expected = student_interval([0.1 * deal for deal in range(8)])
    assert expected is not None
    assert (row.payoff, row.payoff_low, row.payoff_high) == pytest.approx(expected)


@every_row("forfeit, worth", (0, -13.0), (1, 13.0))
def test_forfeit_costs_maximum_loss(forfeit: int, worth: float) -> None:
    result = replace(paid((0.0, 0.0), deal=0), forfeit=forfeit)
    assert game_payoffs(2, [result]) == {0: worth}


@every_row(
    "changes, stakes",
    ({"env": "TicTacToe-v0"}, None),
    ({"env": "TicTacToe-v0", "payoff_scale": 4}, 4.0),
    ({"env": "TicTacToe-v0", "payoffs": "tests.games.test_payoffs:fives"}, 1.0),
    (LEDUC, 13.0),
    (LEDUC | {"payoff_scale": 3.25}, 13.0),
    (KUHN, 2.0),
)
async def test_stakes_are_maximum_payoff(changes, stakes):
    results = await evaluated(configured(changes, games=2), 1, RandomPlayer())
    assert {result.stakes for result in results} == {stakes}


def fives(env: object) -> list[float]:
    return [5.0, -5.0]


def test_student_quantiles_match_table() -> None:
    table = {3: 3.182, 4: 2.776, 7: 2.365, 15: 2.131, 31: 2.040, 127: 1.979}
    for freedom, quantile in table.items():
        assert _student(freedom) == pytest.approx(quantile, rel=0.01)


@every_row("values", [], [1.0] * 3, [1.0, 2.0, 3.0], [2.0] * 64)
def test_few_or_equal_values_have_no_interval(values: list[float]) -> None:
    assert student_interval(values) is None
    assert student_interval([1.0, 2.0, 3.0, 4.0, 5.0], count=2) is None


def test_repeated_greedy_games_have_no_interval() -> None:
    results = [replace(paid((3.0, -3.0), deal=deal, number=deal), turns=[]) for deal in range(64)]
    (row,) = evaluation_scores(2, results)
    assert (row.distinct, row.payoff, row.payoff_low) == (1, 3.0, None)


async def test_run_compares_payoffs_with_version_0_and_saves_them(begin):
    changes: dict[str, Any] = {
        "model": {"name": "tiny_cards", "dtype": "float32", "adapter": {"rank": 4}},
        "games": [KUHN],
        "eval": {"every": 1, "games": 32, "temperature": [1.0, 0.5]},
        "loop": {"mode": "sync", "steps": 1},
    }
    context = begin(**changes)
    await train(context)
    first, last = read_rows(context.folder.metrics)
    for mode in ("sampled", "t0.5"):
        name = f"eval/Kuhn/random/{mode}/payoff"
        assert -2 < first[f"{name}_low"] < first[name] < 2 and first[f"{name}_gain"] is None
        assert last[f"{name}_gain"] == pytest.approx(last[name] - first[name])
    kept = state.parse(context.folder.state(1).read_bytes(), 1)
    assert kept is not None
    kept.published, kept.actors = [], []  # they hold it already
    before, context.first_payoffs = context.first_payoffs, {}
    assert len(before) == 64
    await state.restore(context, kept)
    assert context.first_payoffs == before


def test_summary_and_card_show_payoffs(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    shown: dict[str, Any] = {"payoff": -0.31, "payoff_low": -0.62, "payoff_high": 0.004}
    paying = dataclasses.replace(make_score(1), env="Leduc", **shown)

    tracker.log_evaluation([paying, make_score(1)])
    tracker.end_update(1)
    tracker.finish("all updates made")
    table = printed(tracker).partition("Evaluations")[2].splitlines()
    assert "payoff" in table[1]
    assert "−0.31 (−0.62 to 0.00)" in table[2] and "to 0.00)" not in table[3]
    run = Run("run", tracker.folder, tracker.view.config, read_rows(tracker.folder.metrics), None)
    about: dict[str, Any] = {"base": "tiny", "base_hint": "", "fingerprint": None}
    made: dict[str, Any] = {"dtype": "float32", "max_lora_rank": 4}
    prompt = {"style": "answer", "parser": "exact", "max_tokens": 6, "temperature": 1.0}
    made["prompts"] = {"Leduc": prompt}
    card = model_card(run, Export(version=1, merged=False, **about, **made))
    score = "0.50 (0.30 to 0.70)"
    ends = "– | 6 / 4 / 6 | 2 | 16 | 90 % |"
    paid = f"| Leduc | random | {score} | 1 | {score} | – | −0.31 (−0.62 to 0.00) | {ends}"
    assert paid in card
    assert f"| TicTacToe-v0 | random | {score} | 1 | {score} | – | – | {ends}" in card
