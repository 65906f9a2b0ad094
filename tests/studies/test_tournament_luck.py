"""`unstable tournament --baseline`: payoffs of pairs without the luck of known draws."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.cli import rows
from tests.helpers.every_game import every_game, is_listed
from tests.helpers.locally import locally
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from tests.helpers.trees import KUHN, drawn, tree_of, uniform
from unstable.cli import run
from unstable.commands.corrected import Luck, exact_model
from unstable.config import parse
from unstable.solving.best_response import PolicyValues
from unstable.solving.draws import tabled
from unstable.solving.exploiter import policy_by
from unstable.solving.pool import won_from
from unstable.studies.tournament.pairings import Design, next_round
from unstable.studies.tournament.results import by_deal, pair_corrected
from unstable.studies.tournament.tournament import (
    TournamentOptions,
    TournamentPlan,
    resume,
    tournament,
)
from unstable.types import GameResult, PlayerId, SeatSpec


def play(place: Path, **options: Any) -> dict[str, Any]:
    chosen = TournamentOptions(**{"config": "tiny_kuhn", "baseline": "random"} | options)
    return tournament(["random", "expert"], chosen, {"tracking.run_dir": str(place), "seed": 3})


@every_row("factor", 0.37, 1.0)
def test_corrected_payoff_of_a_pair_is_exact_over_all_games(factor: float) -> None:
    """All games of a pair from both sides are enumerated; exact with any fixed coefficient."""
    tree, config = tree_of("kuhn"), parse({"games": [{"env": KUHN.env, "args": KUHN.args}]})
    policies = {"one": drawn(tree, 1), "two": drawn(tree, 2)}
    design = Design(players=[(name, 1.0) for name in policies], deals=1)
    known = {seat: tabled(policies[seat.player.name]) for seat in design.seats}
    values = PolicyValues(tree, drawn(tree, 3), forfeits=True)
    own = Luck(config.games[0], values, known, is_listed)
    lucks, masses, games = dict[int, list[float]](), list[float](), list[GameResult]()
    for spec in next_round(config, design, []):
        by_seat = [policies[seat.player.name] for seat in spec.seats]
        joint = {node.key: by_seat[node.seat][node.key] for node in tree.decisions}
        for mass, payoff, result in every_game(config.games[0], tree, joint):
            at = replace(spec, game_id=len(games), seed=result.spec.seed)
            lucks[at.game_id] = own.by_seat(replace(result, spec=at))
            each = replace(at, seed=at.game_id)  # a deal of its own
            games.append(replace(result, spec=each, payoffs=[payoff, -payoff], stakes=2.0))
            masses.append(mass / 2)
    assert sum(masses) == pytest.approx(1, abs=1e-12)
    plain = by_deal(games, lambda result, side: result.payoffs[side[0]])["one", "two"]
    luck = by_deal(games, lambda result, side: lucks[result.spec.game_id][side[0]])["one", "two"]
    pairs = zip(masses, plain, luck, strict=True)
    found = sum(mass * (value - factor * each) for mass, value, each in pairs)
    exact = won_from(tree, policies["one"], [policies["two"]], forfeits=True)[0]
    assert found == pytest.approx(float(exact), abs=1e-9)
    assert max(map(abs, luck)) > 0.5
    both = pair_corrected(games, lucks)  # what one wins, the other loses
    assert both["one", "two"].share == pytest.approx(-both["two", "one"].share, abs=1e-12)


@pytest.mark.slow
@pytest.mark.one_core
@every_row("size", {"deals": 80}, {"games": 160})
def test_baseline_changes_no_game_and_resumes(
    size: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = play(tmp_path / "plain", baseline=None, **size)
    found = play(tmp_path / "run", **size)
    files = [tmp_path / name / "games/eval-000000.jsonl" for name in ("plain", "run")]
    games = [[(r["spec"], r["payoffs"]) for r in rows(file)] for file in files]
    assert games[0] == games[1] and plain["players"] == found["players"]
    (pair, _), (before, _) = found["pairs"], plain["pairs"]
    assert before["corrected"] is None
    assert pair["payoff"] == before["payoff"]
    own, payoff = pair["corrected"], pair["payoff"]
    assert own["factor"] > 1.5 and payoff["low"] < own["low"] < own["high"] < payoff["high"]
    said = capsys.readouterr().out
    assert "corrected, 95 %" in said and "control variates by random: all games are worth" in said
    whole = files[1].read_bytes().splitlines(keepends=True)
    files[1].write_bytes(b"".join(whole[:100]))
    assert resume(tmp_path / "run") == found


def test_baselines_without_values_are_refused(tmp_path: Path) -> None:
    for named, said in (
        ({"baseline": "base"}, "'base': not among the players; use one of random, expert"),
        ({"baseline": "expert"}, "'expert': its moves have no exact probabilities"),
        ({"game": ["ConnectFour-v0"]}, "'random': ConnectFour-v0 c"),
        ({"game": ["Nim-v0", "TicTacToe-v0"]}, "'random': requires a single game"),
    ):
        refused(f"^--baseline = {said}", play, tmp_path / "run", **named)


def test_only_plainly_sampled_models_have_exact_probabilities() -> None:
    """A search plays other moves than the adapter that it serves."""
    served = {"path": "/nowhere", "name": "own"}
    for kind, heat, known in (
        ("checkpoint", 1.0, PlayerId("checkpoint:own")),
        ("checkpoint", 0.5, None),
        ("search", 1.0, None),
    ):
        config = parse({"opponents": {"fixed": [{"kind": kind, **served}]}})
        assert exact_model(config, SeatSpec(player=PlayerId("own"), temperature=heat)) == known


@pytest.mark.slow
@pytest.mark.tables("solving rotating", 3)
def test_corrected_payoffs_of_versions(tmp_path: Path) -> None:
    place, one = tmp_path / "met", tmp_path / "one"
    train = ["train", "--config", "tiny_kuhn", "--run_dir", str(one), "--steps", "1"]
    players = [f"{one}@0", f"{one}@1", "random"]
    met = ["tournament", *players, "--baseline", f"{one}@0", "--run_dir", str(place)]
    with locally():
        assert run([*train, "--learner.batch_size", "64"]) == 0
        assert run([*met, "--deals", "64"]) == 0
    plan = TournamentPlan.model_validate_json((place / "tournament.json").read_bytes())
    assert plan.policies is not None and plan.found is not None
    assert set(plan.policies) == {"one:0", "one:1"}
    tree = tree_of("kuhn")
    exact = {name: policy_by(tree, shares) for name, shares in plan.policies.items()}
    exact["random"] = uniform(tree)
    for pair in plan.found["pairs"]:
        own, other = exact[pair["player"]], exact[pair["opponent"]]
        truth = float(won_from(tree, own, [other], forfeits=True)[0])
        found = pair["corrected"]
        assert found["low"] - 1e-6 < truth < found["high"] + 1e-6 and found["factor"] > 3
    assert resume(place) == plan.found
