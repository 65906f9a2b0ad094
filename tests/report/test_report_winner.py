"""Which of several runs is better, by games that are paired where they can be."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.helpers.builders import game
from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from unstable.config import load
from unstable.league.evaluation import evaluation_scores
from unstable.records.files import write_lines
from unstable.records.folder import RunFolder
from unstable.report.comparison import difference_rows, differences, headline
from unstable.report.run import Run, labels
from unstable.report.sections import sections
from unstable.report.survey import survey
from unstable.tracking.metrics import evaluation_metrics
from unstable.types import GameResult
from unstable.types.intervals import mean_interval

FAR, LARGE = {"low": 0.5, "high": 0.5}, {"low": 0.1, "high": 0.1}


def evaluated(
    root: Path,
    name: str,
    worth: list[float],
    version: int = 4,
    seed: int = 0,
    changes: dict[str, Any] | None = None,
    exploitability: dict[str, float] | None = None,
) -> Run:
    """A run whose last version has played these games against random, two a deal."""
    results: list[GameResult] = []
    for number, outcome in enumerate(worth):
        players = [f"main@{version}", "random"]
        outcomes = [outcome, -outcome]
        if number % 2:
            players, outcomes = players[::-1], outcomes[::-1]
        made = game(players, outcomes, purpose="eval", game_id=number)
        results.append(replace(made, spec=replace(made.spec, seed=1000 * seed + number // 2)))
    row = evaluation_metrics(evaluation_scores(version, results)) | {"version": version}
    row |= {f"exploit/TicTacToe-v0/{end}": at for end, at in (exploitability or {}).items()}
    folder = RunFolder(root / name)
    folder.games("eval", version).parent.mkdir(parents=True)
    records = [game_record(result, [], version, None) for result in results]
    write_lines(folder.games("eval", version), records)
    return Run(name, folder, load("default", changes or {}), [row], None)


def test_games_of_equal_deals_and_seats_are_paired(tmp_path: Path) -> None:
    """Two runs alike but for six games of 64: scores alone could not tell them apart."""
    base = [1.0, -1.0] * 32
    better = [1.0 if number in range(1, 13, 2) else each for number, each in enumerate(base)]
    first, second = evaluated(tmp_path, "a", base), evaluated(tmp_path, "b", better, version=6)
    (found,) = differences(first, second)
    low, high = mean_interval([1.0] * 6 + [0.0] * 58, -1.0, 1.0)[1:]
    assert found.difference == f"+0.09 (+{low:.2f} to +{high:.2f})" and low > 0
    assert (found.games, found.sign) == ("64, paired", 1)
    assert found.what == "against random"
    assert found.second.endswith("at version 6")
    assert headline([first, second]) == "b is better than a."
    assert headline([second, first]) == "b is better than a."
    (backwards,) = differences(second, first)
    assert (backwards.sign, backwards.difference[0]) == (-1, "−")


def test_scores_against_past_are_not_compared(tmp_path: Path) -> None:
    """Each run has another past."""
    runs = [evaluated(tmp_path, name, [worth] * 64) for name, worth in (("a", 1.0), ("b", -1.0))]
    for run in runs:
        for name in list(run.rows[0]):
            run.rows[0][name.replace("/random/", "/past/")] = run.rows[0].pop(name)
    assert differences(*runs) == []
    assert headline(runs) == "a and b have no common evaluation."


def test_games_of_different_deals_are_not_paired(tmp_path: Path) -> None:
    first = evaluated(tmp_path, "a", [1.0, -1.0] * 32)
    second = evaluated(tmp_path, "b", [1.0, 1.0, 1.0, -1.0] * 16, seed=1)
    (found,) = differences(first, second)
    # Newcombe (1998), for 32 and 48 of 64.
    assert found.difference == "+0.25 (+0.08 to +0.40)"
    assert (found.games, found.sign) == ("64, 64", 1)
    third = evaluated(tmp_path, "c", [1.0, -1.0, 1.0, 1.0, -1.0] * 12, seed=2)
    assert headline([first, third]) == "No significant difference between a and c."


def test_headline_counts_disagreeing_measures(tmp_path: Path) -> None:
    first = evaluated(tmp_path, "a", [1.0] * 64, exploitability=FAR)
    second = evaluated(tmp_path, "b", [-1.0] * 64, exploitability=LARGE)
    assert headline([first, second]) == ("a and b: b is better on 1 of 2 measures, worse on 1.")
    third = evaluated(tmp_path, "c", [1.0] * 64, exploitability=LARGE)
    assert headline([first, third]) == "c is better than a on 1 of 2 measures."
    assert headline([first, second, third]).count(".") == 2
    assert headline([first, *[second] * 4]) == "5 runs compared"


def test_different_games_of_equal_name_are_not_compared(tmp_path: Path) -> None:
    first = evaluated(tmp_path, "a", [1.0] * 8)
    other = evaluated(tmp_path, "b", [1.0] * 8, changes={"games.0.args": {"size": 4}})
    assert differences(first, other) == []
    assert headline([first, other]) == "a and b have no common evaluation."
    often = {"opponents.fixed": [{"kind": "random", "weight": 2.0}]}
    assert len(differences(first, evaluated(tmp_path, "c", [1.0] * 8, changes=often))) == 1


def test_evaluation_without_games_is_compared_by_score(tmp_path: Path) -> None:
    first = evaluated(tmp_path, "a", [1.0, -1.0] * 32)
    second = evaluated(tmp_path, "b", [1.0] * 64)
    second.folder.games("eval", 4).unlink()
    (found,) = differences(first, second)
    assert (found.games, found.sign) == ("64, 64", 1)


def test_table_names_better_run(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path, "a", [1.0, -1.0] * 32), evaluated(tmp_path, "b", [1.0] * 64)]
    shown = sections(runs, [survey(run) for run in runs])
    (table,) = [t for s in shown for t in s["tables"] if t["title"] == "Compared with a"]
    assert [row[-1] for row in table["rows"]] == ["b"]
    assert difference_rows(runs[:1]) == []


@every_row(
    "names, expected",
    (
        ["tiny-TicTacToe-v0-self-20261123-163000", "tiny-TicTacToe-v0-self-20261123-171500"],
        ["163000", "171500"],
    ),
    (["a-rloo-x", "a-grpo-x", "a-ppo-2-x"], ["rloo", "grpo", "ppo-2"]),
    (["tiny", "tiny-2"], ["tiny", "tiny-2"]),
    (["lr1", "lr2"], ["lr1", "lr2"]),
    (["x/run", "y/run"], ["x", "y"]),
    (["a" * 40, "b" * 40], ["a" * 12 + "…" + "a" * 11, "b" * 12 + "…" + "b" * 11]),
    (["a" * 40, "a" * 41], [f"{n}: {'a' * 12}…{'a' * 11}" for n in (1, 2)]),
)
def test_labels_distinguish_runs(names: list[str], expected: list[str]) -> None:
    assert labels(names) == expected
