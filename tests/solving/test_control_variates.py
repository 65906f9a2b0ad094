"""Control variates: unbiased by enumeration, with valid intervals, and unused if they add noise."""

import random
from collections.abc import Iterator
from importlib import import_module

import pytest

from tests.helpers.every_game import every_game, is_listed, record
from tests.helpers.rows import every_row
from tests.helpers.trees import KUHN, drawn, tree_of
from unstable.config import GameConfig
from unstable.games.game import Game
from unstable.solving.best_response import Policy, PolicyValues, table_at
from unstable.solving.control_variates import Draw, coefficient, corrected, luck
from unstable.solving.draws import PROGRAMS, chance, decision, draws, tabled
from unstable.solving.tree import Node, Tree, grow


def wrong(node: Node) -> tuple[float, float]:
    """A value that has nothing to do with the position, not even at a game's end."""
    chance = random.Random(repr((node.observation, node.payoffs, node.actions)))
    return chance.gauss(0, 5), chance.gauss(3, 5)


@every_row("allowed", 0, 1)
@every_row("seats", (0,), (1,), (0, 1), ())
def test_luck_has_mean_zero_over_all_games_of_kuhn_poker(
    allowed: int, seats: tuple[int, ...]
) -> None:
    """Records are replayed, with illegal answers, second tries and unusual spellings."""
    config = KUHN.model_copy(
        update={"invalid_moves": KUHN.invalid_moves.model_copy(update={"allowed": allowed})}
    )
    tree, policy = tree_of("kuhn"), drawn(tree_of("kuhn"), 1, legal=0.8)
    games = [*every_game(config, tree, policy)]
    assert sum(probability for probability, _, _ in games) == pytest.approx(1, abs=1e-12)
    good = PolicyValues(tree, drawn(tree, 2, legal=0.9), forfeits=True).of
    plain = sum(probability * payoff for probability, payoff, _ in games)
    for value in (good, wrong):
        total, size = 0.0, 0.0
        for probability, payoff, result in games:
            known = dict.fromkeys(seats, tabled(policy))
            own = luck(draws(tree, config, result, known, is_listed), value, [0])
            total += probability * (payoff - own)
            size += probability * own * own
        assert total == pytest.approx(plain, abs=1e-9)
        assert size > 0.01
    if not allowed:
        legal_only = {
            key: {**row, next(iter(row)): row[next(iter(row))] + (1 - sum(row.values())) / 2}
            for key, row in policy.items()
        }
        exact = PolicyValues(tree, legal_only, forfeits=True).of(tree.root)[0]
        assert plain == pytest.approx(exact, abs=1e-9)


def paths(
    tree: Tree, policy: Policy, node: Node
) -> Iterator[tuple[float, list[Draw[Node]], tuple[float, ...]]]:
    """Yield probability, draws and payoffs of each way from a node to a game's end."""
    if not node.children:
        yield 1.0, [], node.payoffs
        return
    if node.seat < 0:
        outcomes = [(p, chance(node, n)) for n, p in enumerate(node.probabilities)]
    else:
        table, lost = table_at(policy, node), Node(payoffs=tree.forfeit(node.seat))
        taken = [decision(node, table, action, lost) for action in (*node.actions, None)]
        outcomes = [(draw.probabilities[draw.taken], draw) for draw in taken]
    for share, draw in outcomes:
        for probability, later, payoffs in paths(tree, policy, draw.successors[draw.taken]):
            yield share * probability, [draw, *later], payoffs


@pytest.mark.slow
@pytest.mark.tables("solving rotating", 2)
def test_luck_has_mean_zero_over_all_games_of_leduc() -> None:
    tree = tree_of("leduc")
    policy = drawn(tree, 1, legal=0.9)
    exact = PolicyValues(tree, policy, forfeits=True).of(tree.root)[0]
    good = PolicyValues(tree, drawn(tree, 2), forfeits=True).of
    for value in (good, wrong):
        found = [
            (probability * (payoffs[0] - luck(way, value, [0])), probability)
            for probability, way, payoffs in paths(tree, policy, tree.root)
        ]
        mean, mass = map(sum, zip(*found, strict=True))
        assert mass == pytest.approx(1, abs=1e-9)
        assert mean == pytest.approx(exact, abs=1e-9)


@every_row(
    "config, deals",
    (KUHN, {1}),
    (GameConfig(env="Nim-v0"), {0}),
    (GameConfig(env="open_spiel:liars_dice(dice_sides=2)"), {1}),
    (GameConfig(env="open_spiel:leduc_poker"), {1, 2}),  # both hands, and the public card
)
def test_replay_finds_the_draws_of_chance(config: GameConfig, deals: set[int]) -> None:
    if config.env.startswith("open_spiel"):
        pytest.importorskip("pyspiel")
    tree, chooser, counts = grow(config), random.Random(0), set()
    known = dict.fromkeys(range(2), PROGRAMS["random"])
    for seed in range(20):
        played, moves = Game(config, seed), list[tuple[str, str]]()
        while not played.done:
            action = chooser.choice(played.legal_moves())
            moves.append((action, action))
            played.step(action)
        _, result = record(config, seed, moves)
        found = [*draws(tree, config, result, known, is_listed)]
        counts.add(len(found) - len(moves))
        assert found[-1].successors[found[-1].taken].payoffs == tuple(played.payoffs)
    assert counts == deals


def test_values_with_errors_are_not_used() -> None:
    """Luck that is independent of the payoffs has no coefficient; half of it has the factor 2."""
    chooser, used = random.Random(0), 0
    for _ in range(200):
        values = [chooser.gauss(0, 1) for _ in range(100)]
        noise = [chooser.gauss(0, 5) for _ in range(100)]
        used += coefficient(values, noise) > 0
    assert used < 14  # 2.3 % expected
    halves = [value / 2 + chooser.gauss(0, 0.1) for value in values]
    assert coefficient(values, halves) == pytest.approx(2, abs=0.2)
    assert coefficient(values, [-value for value in values]) == 0  # never the wrong way
    assert coefficient(values[:7], values[:7]) == 0
    plain = corrected(values, noise)
    assert plain.coefficients == (0, 0) and plain.factor == 1
    assert plain.mean == pytest.approx(sum(values) / 100)


def test_intervals_cover_the_exact_value() -> None:
    covered(200, 0.90, 0.99)


@pytest.mark.slow
def test_intervals_cover_the_exact_value_in_94_to_96_percent() -> None:
    covered(2000, 0.94, 0.96)


def covered(matches: int, low: float, high: float) -> None:
    aivat = import_module("bench.aivat")
    tree = tree_of("kuhn")
    policies = [drawn(tree, seed) for seed in (1, 2, 1)]
    for values in ("earlier version", "noise"):
        found = aivat.measured(tree, *policies, values, ("chance", "own", "other"), 64, matches)
        assert low <= found.coverage <= high
        assert (found.factor > 2) == (values == "earlier version") and found.factor > 0.95
