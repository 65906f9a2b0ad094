"""Report sections for teams, several games and several runs, on small handmade runs."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.helpers.records import game_record
from tests.helpers.tracking import make_game
from unstable.config import load
from unstable.records.files import write_lines
from unstable.records.folder import RunFolder
from unstable.report.charts import MOST_SERIES
from unstable.report.comparison import _is_same
from unstable.report.run import Row, Run
from unstable.report.sections import sections
from unstable.report.settings import config_tables
from unstable.report.survey import Met, survey
from unstable.types import GameResult
from unstable.types.metrics import part

TEAMS = ((0, 2), (1, 3))


def make_run(
    root: Path, name: str, rows: list[Row] | None = None, changes: dict[str, Any] | None = None
) -> Run:
    return Run(name, RunFolder(root), load("default", changes or {}), rows or [], None)


def recorded(root: Path, *games: GameResult) -> Run:
    (root / "games").mkdir(parents=True)
    records = [game_record(game, [], 1, 0) for game in games]
    write_lines(RunFolder(root).games("train", 1), records)
    return make_run(root, root.name)


def with_spec(game: GameResult, **changes: Any) -> GameResult:
    return replace(game, spec=replace(game.spec, **changes))


def shown(*runs: Run) -> dict[str, dict[str, Any]]:
    """All charts by title."""
    found = sections(runs, [survey(run) for run in runs])
    return {chart["title"]: chart for each in found for chart in each["charts"]}


def test_team_mates_are_not_opponents(tmp_path: Path) -> None:
    mates = ("main@1", "random", "main@1", "random")
    game = with_spec(make_game(0, mates, outcomes=(1.0, -1.0, 0.5, -1.0)), teams=TEAMS)
    assert survey(recorded(tmp_path / "run", game)).pairs["TicTacToe-v0"] == {
        ("main@1", "random"): Met(1, 0.75),
        ("random", "main@1"): Met(1, -1.0),
    }


def test_seats_without_teams_are_opponents(tmp_path: Path) -> None:
    game = make_game(0, ("main@1", "random", "rules"), outcomes=(1.0, 0.0, -1.0))
    pairs = survey(recorded(tmp_path / "run", game)).pairs["TicTacToe-v0"]
    assert len(pairs) == 6
    assert pairs["main@1", "rules"] == pairs["main@1", "random"] == Met(1, 1.0)


def test_each_game_has_its_own_outcome_matrix(tmp_path: Path) -> None:
    first = make_game(0, outcomes=(1.0, -1.0))
    second = with_spec(make_game(1, outcomes=(-1.0, 1.0)), env="Nim-v0")
    both = recorded(tmp_path / "both", first, second)
    charts = shown(both)
    for env, label in (("TicTacToe-v0", "+1.00"), ("Nim-v0", "−1.00")):
        chart = charts[f"Outcome matrix, {env}"]
        cells = {(c["row"], c["column"]): c for c in chart["spec"]["data"]["values"]}
        assert cells["v1", "random"]["label"] == label and cells["v1", "random"]["count"] == 1
        assert "in all 1 recorded games" in chart["caption"]
    assert "Outcome matrix" in shown(recorded(tmp_path / "one", first))
    assert "Outcome matrix: both, Nim-v0" in shown(both, make_run(tmp_path / "none", "other"))


def compared(tmp_path: Path, *changes: dict[str, Any]) -> dict[str, tuple[list[str], bool]]:
    """Cells and mark of each field in the tables of runs with such configs."""
    runs = [make_run(tmp_path, f"run{at}", changes=each) for at, each in enumerate(changes)]
    return {
        path: (cells, mark)
        for table in config_tables(runs)
        for (path, *cells), mark in zip(table.rows, table.marked, strict=True)
    }


def algorithm(name: str, **fields: Any) -> dict[str, Any]:
    return {f"learner.algorithm.{key}": value for key, value in {"name": name, **fields}.items()}


def test_compared_algorithms_show_their_own_defaults(tmp_path: Path) -> None:
    gspo = {**algorithm("gspo"), "groups.size": 4}
    rows = compared(tmp_path, algorithm("ppo", clip_low=0.1), gspo)
    assert rows["learner.algorithm.clip_low"] == (["0.1", "0.0003", "0.2 / 0.0003"], True)
    assert rows == {
        path: ([second, first, " / ".join(reversed(default.split(" / ")))], mark)
        for path, ([first, second, default], mark) in compared(
            tmp_path, gspo, algorithm("ppo", clip_low=0.1)
        ).items()
    }


def test_missing_field_of_algorithm_is_shown_as_dash(tmp_path: Path) -> None:
    ppo = algorithm("ppo", **{"critic.gamma": 0.9})
    rows = compared(tmp_path, {**algorithm("grpo"), "groups.size": 4}, ppo)
    found = {path: row for path, row in rows.items() if ".critic" in path}
    assert found and all(cells[0] == "–" and mark for cells, mark in found.values())
    assert "–" not in {cells[-1] for cells, _ in found.values()}


def test_missing_game_of_run_is_shown_as_dash(tmp_path: Path) -> None:
    rows = compared(tmp_path, {}, {"games.1.env": "Nim-v0"})
    assert rows["games.1.env"] == (["–", "Nim-v0", "TicTacToe-v0"], True)


def ratings(*players: str) -> list[Row]:
    """Rows of two versions, in which the players were rated."""
    return [
        {"version": version}
        | {f"rating/{player}/mu": 25.0 + version for player in players}
        | {f"rating/{player}/sigma": 8.0 - version for player in players}
        for version in (0, 1)
    ]


def colours(chart: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = chart["spec"]["encoding"]["color"]
    return found


def test_run_has_one_color_in_all_charts(tmp_path: Path) -> None:
    first = make_run(tmp_path, "first", ratings("policy"))
    charts = shown(first, make_run(tmp_path, "second", ratings("policy", "random")))
    alone = charts["Ratings: random"]
    assert {point["series"] for point in alone["spec"]["data"]["values"]} == {"second"}
    for chart in (charts["Ratings: policy"], alone):
        assert colours(chart)["scale"]["domain"] == ["first", "second"]
        assert colours(chart)["legend"] is not None
    chart = shown(make_run(tmp_path, "run", ratings("policy")))["Ratings"]
    assert colours(chart)["scale"]["domain"] == ["policy"] and colours(chart)["legend"] is None


def test_comparison_counts_curves_not_shown(tmp_path: Path) -> None:
    def charts(players: int) -> list[dict[str, Any]]:
        rows = ratings(*(f"bot{number}" for number in range(players)))
        runs = [make_run(tmp_path, name, rows) for name in ("first", "second")]
        return [c for title, c in shown(*runs).items() if title.startswith("Ratings")]

    left_out = "The charts of 3 further curves are not shown."
    assert len(charts(MOST_SERIES)) == len(charts(MOST_SERIES + 3)) == MOST_SERIES
    assert not any("not shown" in chart["caption"] for chart in charts(MOST_SERIES))
    assert all(chart["caption"].endswith(left_out) for chart in charts(MOST_SERIES + 3))


def test_bases_of_two_models_are_two_opponents(tmp_path: Path) -> None:
    first, other = (
        make_run(tmp_path / name, name, changes={"model.name": name, "model.dtype": "float32"})
        for name in ("tiny", "tiny_cards")
    )
    env = part(first.config.games[0].key)
    assert _is_same(first, other, env, "random")
    assert _is_same(first, first, env, "base") and not _is_same(first, other, env, "base")
