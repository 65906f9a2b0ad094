"""Generated games: exact trees, rules of known games, equal games of equal seeds only."""

import random
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mistakes import refused
from tests.helpers.trees import tree_of, uniform
from unstable.commands.exploit import measure_table
from unstable.config import GameConfig
from unstable.contrib.environments.generated import BettingGame, environment_class, game_class
from unstable.contrib.environments.generated_rules import (
    MOST_DECISIONS,
    Betting,
    Bidding,
    Cards,
    drawn,
)
from unstable.games.game import Game
from unstable.records.folder import RunFolder
from unstable.solving.best_response import assess
from unstable.solving.table import tabulated, write_tables
from unstable.solving.tree import Node, Tree, grow

SEEDS = range(20)
JQK = Cards(("J", "Q", "K"), upset=False)
KUHN_RULES = Betting(JQK, 1, 1, ("bet",), ((1,),), 1, 0, True, "check", "call", "fold")
LEDUC_RULES = KUHN_RULES._replace(copies=2, sizes=((2,), (4,)), most=2)
GOOFSPIEL_RULES = Bidding(Cards(("1", "2", "3", "4"), False), (4, 3, 2, 1), False, False, False)
Kuhn = game_class("Kuhn", KUHN_RULES)
Leduc = game_class("Leduc", LEDUC_RULES)
Goofspiel = game_class("Goofspiel", GOOFSPIEL_RULES)


def config(seed: int) -> GameConfig:
    return GameConfig(env=f"generated:{seed}")


@cache
def tree(seed: int) -> Tree:
    return grow(config(seed))


def own(name: str) -> Tree:
    return grow(GameConfig(env=f"{__name__}:{name}"))


def shape(node: Node) -> int:
    """Hash of a tree without its words."""
    draws = tuple(round(share, 9) for share in node.probabilities)
    return hash(repr((node.seat, node.payoffs, draws, *map(shape, node.children))))


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_are_small_zero_sum_and_exploitable(seed: int) -> None:
    grown, again = tree(seed), grow(config(seed))
    assert len(grown.decisions) <= drawn(seed).decisions() <= MOST_DECISIONS
    scale = environment_class(str(seed))().scale()
    ends = [node.payoffs for node in grown.parents_first() if node.payoffs]
    assert all(sum(payoffs) == 0 for payoffs in ends)
    assert max(map(max, ends)) == grown.most == scale, "a bound that play reaches"
    found, same = (assess(each, uniform(each), forfeits=False) for each in (grown, again))
    assert found.exploitability > 0.05 and found == same
    assert shape(grown.root) == shape(again.root)
    assert {node.key for node in grown.decisions} == {node.key for node in again.decisions}


@pytest.mark.parametrize("seed", SEEDS)
def test_positions_have_perfect_recall(seed: int) -> None:
    """An observation fixes what its seat has seen and done before, which numbers of sets count."""
    sets = defaultdict(set)
    for node in tree(seed).parents_first():
        if node.actions:
            sets[node.key].add(node.information_set)
    assert sets and {len(numbers) for numbers in sets.values()} == {1}


def test_seeds_give_different_games() -> None:
    assert len({shape(tree(seed).root) for seed in SEEDS}) >= 18
    assert len({environment_class(str(seed)).brief for seed in SEEDS}) == len(SEEDS)
    betting = [isinstance(drawn(seed), Betting) for seed in SEEDS]
    assert 5 <= sum(betting) <= 15


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_games_accept_legal_moves_only(seed: int, play: int) -> None:
    game, rng = Game(GameConfig(env=f"generated:{seed}"), play), random.Random(play)
    env = game.env
    while not game.done:
        before, state = env.observe(), env.whole_state()
        legal = game.legal_moves()
        line = game.observe().position
        assert line.partition(": ")[2].split() == [move.strip("[]") for move in legal]
        for wrong in ("[no]", "", legal[0].strip("[]"), f"{legal[0]} {legal[-1]}"):
            assert env.step(wrong).refused
            after = env.observe()
            assert after.notice and (after.board, after.seat) == (before.board, before.seat)
            assert env.whole_state() == state and game.legal_moves() == legal
        assert not game.step(rng.choice(legal)).invalid
    scale = env.scale()
    assert scale is not None and sum(game.payoffs) == 0 and max(game.payoffs) <= scale
    assert game.forfeit is None and not game.truncated


@pytest.mark.parametrize("name, known, opener", [("Kuhn", "kuhn", 1), ("Leduc", "leduc", 0)])
def test_betting_by_the_rules_of_poker_is_that_poker(name: str, known: str, opener: int) -> None:
    found, expected = own(name), tree_of(known)
    assert len(found.decisions) == len(expected.decisions)
    assert found.most == expected.most
    one, other = (assess(each, uniform(each), forfeits=False) for each in (found, expected))
    assert one.exploitability == pytest.approx(other.exploitability, abs=1e-9)
    assert one.values[0] == pytest.approx(other.values[opener], abs=1e-9)


def test_bidding_by_the_rules_of_goofspiel_is_goofspiel() -> None:
    """OpenSpiel pays half the difference: points less the mean of both seats."""
    pytest.importorskip("pyspiel")
    rules = "num_cards=4,imp_info=True,points_order=descending,returns_type=point_difference"
    found, expected = own("Goofspiel"), grow(GameConfig(env=f"open_spiel:goofspiel({rules})"))
    one, other = (assess(each, uniform(each), forfeits=False) for each in (found, expected))
    assert one.exploitability == pytest.approx(2 * other.exploitability, abs=1e-9)


def test_weakest_card_may_beat_the_strongest() -> None:
    ring = Cards(("a", "b", "c"), upset=True)
    assert [ring.compare(*pair) for pair in ((0, 1), (1, 2), (2, 0), (0, 2), (1, 1))] == [
        *(-1, -1, -1, 1, 0)
    ]
    assert "except that a beats c" in ring.order()


@pytest.mark.parametrize("wins, won", [(True, 1.0), (False, -1.0)])
def test_cards_like_the_open_one_win_or_lose(wins: bool, won: float) -> None:
    game = game_class("Pairs", LEDUC_RULES._replace(pairs_win=wins))()
    assert isinstance(game, BettingGame)
    game.reset(2, 0)
    for _ in range(2):
        game.step("[check]")
    game._held, game._open = (0, 2), 0
    for _ in range(2):
        game.step("[check]")
    assert game.payoffs() == [won, -won]


def test_ties_of_bids_may_raise_the_next_prize() -> None:
    for kept, points in ((True, 9.0), (False, 4.0)):
        rules = GOOFSPIEL_RULES._replace(prizes=(5, 4), kept=kept)
        game = game_class("Ties", rules)()
        game.reset(2, 0)
        for move in ("[2]", "[2]", "[3]"):
            assert not game.step(move).over
        assert game.step("[1]").over and game.payoffs() == [points, -points]


def test_exploitability_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command `exploit RUN --policy TABLE`."""
    grown, run = tree(6), RunFolder(tmp_path / "run")
    run.root.mkdir()
    run.config.write_text("model: {name: tiny}\ngames: [{env: 'generated:6'}]\n")
    table = tmp_path / "uniform.csv"
    write_tables(table, {"generated:6": tabulated(grown, uniform(grown))})
    (found,) = measure_table(run.root, table, [], {})
    expected = assess(grown, uniform(grown), forfeits=False).exploitability
    assert found.low == pytest.approx(expected, abs=1e-9)
    assert f"generated:6: {expected:.3f} (NashConv" in capsys.readouterr().out


def test_wrong_names_are_refused() -> None:
    for name in ("", "x", "-1", "1:2", "\u0663", "1" * 5000):
        refused("no seed; write one such as generated:3", environment_class, name)
