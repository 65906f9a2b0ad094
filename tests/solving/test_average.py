"""Averages of policies, and policies as tables and files."""

from pathlib import Path

import pytest

from tests.helpers.liars import Liars
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from tests.helpers.trees import KUHN, drawn, kuhn
from unstable.config import ConfigError, GameConfig
from unstable.solving.average import averaged
from unstable.solving.best_response import Policy, PolicyValues, assess
from unstable.solving.table import TableRow, policy_of, read_tables, tabulated, write_tables
from unstable.solving.tree import Tree, grow


@every_row("legal, forfeits", (1.0, True), (0.8, True), (0.8, False))
@every_row("game", KUHN, GameConfig(env=f"{Liars.__module__}:Liars"))
def test_average_policy_earns_mean_payoff_of_its_parts(game, legal, forfeits):
    """One seat draws one of three policies before the game; the other plays a fourth."""
    tree = kuhn() if game is KUHN else grow(game)
    *parts, other = (drawn(tree, seed, legal) for seat, seed in enumerate(range(4)))
    mean = averaged(tree, parts, forfeits=forfeits)
    for seat in range(2):

        def value(policy: Policy, seat: int = seat) -> float:
            mixed = {}
            for node in _all(tree):
                own = policy if node.seat == seat else other
                given = own.get(node.information_set)
                mixed[node.information_set] = own[node.key] if given is None else given
            return PolicyValues(tree, mixed, forfeits).of(tree.root)[0]

        assert value(mean) == pytest.approx(sum(map(value, parts)) / 3)


def _all(tree: Tree):
    waiting = [tree.root]
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.seat >= 0:
            yield node


def test_average_of_one_policy_is_itself() -> None:
    policy = drawn(kuhn(), 1)
    mean = averaged(kuhn(), [policy, policy], forfeits=True)
    found, expected = (assess(kuhn(), each, forfeits=True) for each in (mean, policy))
    assert found.best == pytest.approx(expected.best)
    assert found.values == pytest.approx(expected.values)
    tree = grow(GameConfig(env="Nim-v0", args={"piles": [1, 2]}))
    with pytest.raises(ConfigError, match="unsupported for games of perfect information"):
        averaged(tree, [drawn(tree, 0)], forfeits=True)


@every_row("ending", ".csv", ".json")
@every_row("env", "kuhn", "Nim-v0", "average")
def test_policy_table_round_trip(tmp_path: Path, ending: str, env: str) -> None:
    tree = grow(GameConfig(env=env, args={"piles": [1, 2]})) if env == "Nim-v0" else kuhn()
    policy = drawn(tree, 3, legal=0.9)
    if env == "average":
        policy = averaged(tree, [policy, drawn(tree, 4)], forfeits=True)
    path = tmp_path / f"policy{ending}"
    write_tables(path, {"A": tabulated(tree, policy), "B": []})
    again = policy_of(tree, read_tables(path)["A"], "--policy")
    for forfeits in (True, False):
        assert assess(tree, again, forfeits=forfeits) == assess(tree, policy, forfeits=forfeits)
    refused(f"policy{ending}': already exists", write_tables, path, {}, check=True)


def test_table_of_another_game_gives_one_line_error() -> None:
    rows = tabulated(kuhn(), drawn(kuhn(), 0))
    first, *rest = rows
    named = f"seat {first.seat} at '{first.position}'"
    for changed, words in (
        (rest, f"T: missing {named}"),
        ([*rows, first._replace(position="K")], f"T: seat {first.seat} never reaches 'K'"),
        ([first._replace(probabilities={"[run]": 1.0}), *rest], r"T: .* illegal action '\[run\]'"),
        (
            [first._replace(probabilities={"[bet]": 1.5}), *rest],
            f"T: {named}: invalid probabilities",
        ),
    ):
        refused(words.replace("+", r"\+"), policy_of, kuhn(), changed, "T")


@every_row(
    "name, text, words",
    ("a.txt", "", "unsupported format; use .csv or .json"),
    ("a.csv", "game,seat\nA,0\n", "not a CSV file with the columns game, seat"),
    ("a.json", "{", "not a JSON list"),
    ("a.json", "[1]", "not a JSON list"),
    (
        "a.csv",
        "game,seat,position,action,probability\n" + "A,0,K,[bet],0.5\n" * 2,
        r"\[bet\] is listed twice at K",
    ),
    ("none.json", None, "No such file"),
)
def test_malformed_table_gives_one_line_error(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    refused(words, read_tables, tmp_path / name)


def test_table_rows_name_observations() -> None:
    rows = tabulated(kuhn(), drawn(kuhn(), 0))
    assert len(rows) == 12 and isinstance(rows[0], TableRow)
    assert {row.position.partition(" ")[0] for row in rows} == {"J", "Q", "K"}
