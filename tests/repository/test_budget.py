"""Budgets of `budget.toml`: sizes and counts of the repository, which may only fall."""

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.loop import Begin
from tests.helpers.measures import (
    FILES,
    PACKAGE,
    ROOT,
    core_arrows,
    core_lines,
    documentation_words,
    fault_borders,
    lines,
    shared_class_names,
    source,
    tracing,
)
from unstable.config import RunConfig, fields
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.games.game import Game
from unstable.loop.train import train

BUDGET = tomllib.loads(Path(__file__).with_name("budget.toml").read_text(encoding="utf-8"))
SLACK = 0.01
"""Share by which a size may be below its budget."""


def deviation(name: str, most: int, measured: int, slack: float = 0.0) -> str:
    """Return how a measure deviates from its budget, "" if it does not."""
    if measured > most:
        over = measured - most
        return f"{name} is {measured}, {over} over its budget: cut {over} or raise it with a reason"
    if measured < most * (1 - slack):
        return f"{name} is {measured}: write most = {measured} in place of {most} in budget.toml"
    return ""


def deviations(section: str, measures: dict[str, int], slack: float = 0.0) -> list[str]:
    budgets = BUDGET[section]
    assert set(budgets) == set(measures)
    found = (deviation(name, budgets[name]["most"], measures[name], slack) for name in measures)
    return [line for line in found if line]


def test_sizes_are_within_budget() -> None:
    measures = {
        "package_lines": lines(PACKAGE),
        "core_lines": core_lines(),
        "test_lines": lines(ROOT / "tests"),
        "documentation_words": documentation_words(),
    }
    assert deviations("sizes", measures, SLACK) == []


def test_counts_equal_their_budgets() -> None:
    measures = {
        "core_arrows": core_arrows(),
        "files_beside_the_rooms": len(list(PACKAGE.glob("*.py"))),
        "broad_handlers": sum(len(source(path).broad_handlers) for path in FILES),
        "fault_borders": len(fault_borders()),
        "shared_class_names": len(shared_class_names()),
        "config_fields": len(fields(RunConfig)),
    }
    assert deviations("counts", measures) == []


async def test_call_depths_equal_their_budgets(begin: Begin) -> None:
    """Count the package's functions from a loop function to the end of its call path, inclusive.

    The loop, an actor and a learner run in this process, so calls between processes are not
    counted. Of several paths the longest counts.
    """
    context = begin(
        learner={"batch_size": 2, "micro_batch_size": 2},
        eval={"every": 0},
        loop={"mode": "sync", "steps": 1},
    )
    with tracing((Game, "step"), (torch.Tensor, "backward"), (EmbeddedEngine, "load")) as paths:
        await train(context)
    ways = {
        name: longest(f"unstable.loop.train.{start}", paths[end])
        for name, start, end in (
            ("play", "play_round", "step"),
            ("learn", "learn", "backward"),
            ("publish", "publish", "load"),
        )
    }
    depths = {name: len(way) for name, way in ways.items()}
    assert deviations("call_depth", depths) == [], "\n".join(map(" > ".join, ways.values()))


def longest(start: str, paths: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the longest path that starts at `start`."""
    return max((path[path.index(start) :] for path in paths if start in path), key=len)


def test_deviation_allows_slack_below_a_budget_only() -> None:
    assert deviation("lines", 1000, 1000) == ""
    assert deviation("lines", 1000, 1001, SLACK).startswith("lines is 1001, 1 over its budget")
    assert deviation("lines", 1000, 990, SLACK) == ""
    assert "write most = 989 in place of 1000" in deviation("lines", 1000, 989, SLACK)
    assert "write most = 999" in deviation("arrows", 1000, 999)


def numbers(table: dict[str, Any], place: str = "") -> Iterator[tuple[str, tuple[float, Any]]]:
    """Yield each number of a table and its subtables, with its reason."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{place}{key}.")
        elif not isinstance(value, str):
            yield place + key, (value, table.get("reason"))


def unreasoned(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """List the numbers that rose without a new reason."""
    old = dict(numbers(before))
    return [
        f"{place} rose from {old[place][0]} to {number}: give it a new `reason`"
        for place, (number, reason) in numbers(after)
        if place in old and number > old[place][0] and reason in (None, old[place][1])
    ]


def test_raised_number_requires_a_new_reason() -> None:
    old = {"counts": {"arrows": {"most": 9, "reason": "once"}}, "seconds": {"quick": 5}}
    assert unreasoned(old, old) == []
    raised: dict[str, Any] = {
        "counts": {"arrows": {"most": 10, "reason": "once"}},
        "seconds": {"quick": 6},
    }
    assert [line.partition(":")[0] for line in unreasoned(old, raised)] == [
        "counts.arrows.most rose from 9 to 10",
        "seconds.quick rose from 5 to 6",
    ]
    raised["counts"]["arrows"]["reason"] = "a new room"
    raised["seconds"]["reason"] = "a slower machine"
    assert unreasoned(old, raised) == []
    assert unreasoned(raised, old) == []


def test_no_budget_was_raised_without_a_reason() -> None:
    """Compare with the last two commits, as far as the clone has them."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    commits = [given for given in map(committed, ("HEAD", "HEAD~1")) if given is not None]
    if not commits:
        pytest.skip("git has no commit of budget.toml")
    assert [line for before in commits for line in unreasoned(before, BUDGET)] == []


def committed(revision: str) -> dict[str, Any] | None:
    """Return the budgets of a revision, or None if git does not have it."""
    place = f"{revision}:./tests/repository/budget.toml"
    done = subprocess.run(["git", "show", place], cwd=ROOT, capture_output=True, text=True)
    return tomllib.loads(done.stdout) if done.returncode == 0 else None
