"""`bench.baselines` measures in this package's unit, and solvers approach an equilibrium."""

import pytest

pytest.importorskip("pyspiel", reason="pip install -e '.[open_spiel]'")

from bench.baselines import GAMES, measure
from tests.helpers.trees import KUHN, LEDUC, uniform
from unstable.config import GameConfig
from unstable.solving.best_response import assess
from unstable.solving.tree import grow

OURS = {
    "kuhn": KUHN,
    "leduc": LEDUC,
    "kuhn3": GameConfig(env=f"open_spiel:{GAMES['kuhn3']}", seats=3),
    "goofspiel4": GameConfig(env=f"open_spiel:{GAMES['goofspiel4']}"),
    "dark_hex2": GameConfig(env=f"open_spiel:{GAMES['dark_hex2']}"),
}


@pytest.mark.parametrize("name", OURS)
def test_uniform_play_has_the_exploitability_that_runs_measure(name: str) -> None:
    tree = grow(OURS[name])
    expected = assess(tree, uniform(tree), forfeits=False).exploitability
    assert measure(name, "uniform", 0, 1, {})["exploitability"] == pytest.approx(expected)


def test_solvers_visit_the_decisions_and_approach_an_equilibrium() -> None:
    known: dict[str, object] = {}
    for solver, most in (("CFR+", 0.01), ("external", 0.05), ("outcome", 0.1)):
        cell = measure("kuhn", solver, 20_000, 1, known)
        assert cell["exploitability"] < most, solver
        assert cell["visited"] == pytest.approx(20_000, rel=0.01), solver


def test_cell_without_a_figure_names_the_reason() -> None:
    assert "1,548 decisions" in measure("leduc", "CFR+", 1000, 1, {})["reason"]
    assert "no tensor" in measure("oshi_zumo4", "deep", 1000, 1, {})["reason"]
