"""A run that evaluates versions against their own past, and says what the worst case is."""

import asyncio
import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.helpers.loop import KUHN_RUN, Begin, make_context, played
from unstable.config import dump
from unstable.loop.context import Context
from unstable.loop.train import train
from unstable.records.policies import read_policies
from unstable.records.reading import Skipped, read_rows
from unstable.records.summary import RunSummary
from unstable.records.text import bounds, interval
from unstable.report.run import Run, read_runs
from unstable.report.sections import sections
from unstable.report.survey import survey
from unstable.runtime.local import LocalActor
from unstable.solving.exploiter import policy_by
from unstable.solving.pool import least_won
from unstable.solving.tree import grow
from unstable.studies.ratings import least_record, ratings
from unstable.studies.rebuilding import rebuild
from unstable.tracking.metrics import worst_metrics
from unstable.tracking.summary import summary
from unstable.types import LeastWon
from unstable.types.tallies import Least

EVAL = {"every": 1, "games": 16, "temperature": [1.0, 0.0], "opponents": ["random", "past"]}


def trained(tiny_folder: Path, place: Path, mode: str, pool_size: int) -> Context:
    context = make_context(
        tiny_folder,
        place,
        num_actors=2,
        loop={"mode": mode, "steps": 4},
        eval=EVAL,
        opponents={"draw": {"self": 0.5, "past": 0.4, "fixed": 0.1}, "pool_size": pool_size},
    )
    asyncio.run(train(context))
    context.folder.config.write_text(dump(context.config), encoding="utf-8")
    return context


@pytest.mark.parametrize(("mode", "pool_size"), [("sync", 8), ("async", 1)])
def test_dashboard_summary_and_report_agree(
    tiny_folder: Path, tmp_path: Path, mode: str, pool_size: int
) -> None:
    context = trained(tiny_folder, tmp_path / "run", mode, pool_size)
    assert context.failures == 0, "versions named by games stay loaded"
    row = read_rows(context.folder.metrics)[-1]
    assert row["version"] == 4 and row["eval/TicTacToe-v0/past/sampled/games"] == 16
    assert row["eval/TicTacToe-v0/past/sampled/gain"] is None
    found = context.past_results.least()
    least = found["main"]
    assert least.compared >= min(pool_size, 2) and least.games >= 8
    assert {name: row[name] for name in worst_metrics(found)} == worst_metrics(found)
    assert RunSummary.read(context.folder, Skipped()).worst == context.tracker.view.summary.worst

    (run,) = read_runs([context.folder.root])
    assert [table["rows"][0] for table in _tables(run) if table["title"].startswith("Lowest")] == [
        ["main", interval(*least.score), least.opponent, *map(str, least[2:])]
    ]
    told = ratings([context.folder.root], 1.0, as_json=True)
    assert told["least"] == [{"player": "main", **least_record(least)}]
    assert rebuild(context.folder, Skipped()).difference == 0.0
    context.tracker.close()
    console = Console(file=io.StringIO(), width=200)
    console.print(summary(context.folder, "all updates made"))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue().partition("Lowest score")[2]
    assert re.search(rf"main +{least.score.mean:.2f} \(.*\) +{least.opponent} ", shown)
    _check_games(context, least)


def _check_games(context: Context, least: Least) -> None:
    """The evaluation of version 4 met the versions that the pool had, in both seats alike."""
    specs = [each for each in played(context.folder, "eval") if each["version"] == 4]
    of_past = [each["players"] for each in specs if "random" not in each["players"]]
    assert len(of_past) == 2 * 16 and all("main@4" in players for players in of_past)
    assert sum(players[0] == "main@4" for players in of_past) == 16
    assert least.opponent in {name for players in of_past for name in players} - {"main@4"}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_worst_result_against_past_is_exact_and_shown(
    begin: Begin, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    context = begin(
        loop={"mode": mode, "steps": 3},
        learner={"batch_size": 64, "micro_batch_size": 32, "learning_rate": 1e-2},
        **KUHN_RUN,
    )

    async def run_whole() -> None:
        await train(context)
        for actor in context.actors:
            assert isinstance(actor, LocalActor)
            await actor.close()

    asyncio.run(run_whole())
    folder = context.folder
    folder.config.write_text(dump(context.config), encoding="utf-8")
    rows = {row["version"]: row for row in read_rows(folder.metrics)}
    assert "exploit/Kuhn/past_low" not in rows[0] or rows[0]["exploit/Kuhn/past_low"] is None
    assert folder.measured() == [0, 1, 2, 3]
    tree = grow(context.config.games[0])
    known = read_policies(folder, 4, Skipped())["Kuhn"]
    policies = {version: policy_by(tree, shares) for version, shares in known.items()}
    least = least_won(tree, policies[3], {version: policies[version] for version in range(3)})
    found = {part: rows[3][f"exploit/Kuhn/past_{part}"] for part in LeastWon._fields}
    assert found == least._asdict() and least.compared == 3
    assert -rows[3]["exploit/Kuhn/high"] - 1e-9 <= least.low <= least.high

    assert f"against version {least.member}, the lowest of 3 before it" in capsys.readouterr().out
    context.tracker.close()
    console = Console(file=io.StringIO(), width=200)
    console.print(summary(folder, "all updates made"))
    assert isinstance(console.file, io.StringIO)
    won = bounds(least.low, least.high, between="–")
    assert re.search(rf"{won} +{least.member} +3$", console.file.getvalue(), re.MULTILINE)
    (run,) = read_runs([folder.root])
    (table,) = (each for each in _tables(run) if each["title"].startswith("Exploit"))
    assert [row[-3:] for row in table["rows"]] == [[won, f"{least.member}", "3"]]


def _tables(run: Run) -> list[Any]:
    return [table for section in sections([run], [survey(run)]) for table in section["tables"]]
