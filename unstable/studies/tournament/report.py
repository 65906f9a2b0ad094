"""Report page of a tournament: standings, pairs and games."""

from collections.abc import Mapping, Sequence
from typing import Any

from unstable.commands.report import sources
from unstable.models.hub import cache_folder
from unstable.records.folder import RunFolder
from unstable.records.tables import Table
from unstable.records.text import command_line, fixed
from unstable.report.charts import ROW_HEIGHT, Chart, Spec, heat_map
from unstable.report.games import packed_games
from unstable.report.page import plot_library, write_page
from unstable.report.report import FOOTER, settings_section
from unstable.report.run import read_runs
from unstable.report.sections import section
from unstable.report.survey import survey
from unstable.studies.ratings import env_tables
from unstable.studies.tournament.results import lines, ordered, pairs_table, standings_table

Found = Mapping[str, Any]
AGAIN = "config.yaml and tournament.json in the folder determine games, players and seeds."


def write_tournament_report(folder: RunFolder, found: Found) -> int:
    """Write the page of a tournament's results into its folder; return its size in bytes."""
    (run,) = read_runs([folder.root])
    games, chunks = packed_games([run], [survey(run)], [sources(run.config)])
    players = ordered(found)
    command = None if run.environment is None else run.environment.command
    summary = {
        **{"name": run.name, "label": run.label, "kind": "", "answer": "", "state": ""},
        "reasons": lines(found),
        "facts": [
            ("players", f"{len(players)}"),
            ("games", f"{found['games']:,}"),
            ("environments", ", ".join(game.key for game in run.config.games)),
            ("seed", f"{run.config.seed}"),
        ],
        "commands": [
            *([command] if command else []),
            command_line("unstable", "tournament", "--resume", folder.root),
        ],
    }
    report = {
        "title": f"{run.name} · tournament",
        "kicker": f"unstable tournament · {run.name}",
        "headline": headline(found),
        "runs": [summary],
        "sections": [
            section(
                *("standings", "Standings", [_strengths(found)]),
                [standings_table(found), *env_tables(found)],
            ),
            section(
                *("pairs", "Pairwise results", [_scores(found, players)]),
                [pairs_table(found), *_together(found)],
            ),
            settings_section([run]),
        ],
        "games": games,
        "again": AGAIN,
        "footer": FOOTER,
    }
    return write_page(folder.report, report, chunks, plot_library(cache_folder()))


def headline(found: Found) -> str:
    """Return a sentence on the strongest player, and whether the fit is sure, or on a cycle."""
    if not found["players"]:
        return "No game counts: all were forfeited."
    first, *others = found["players"]
    if found["cycles"]:
        ring = found["cycles"][0]
        return f"No consistent ranking: {' beats '.join([*ring, ring[0]])}."
    near = [row["player"] for row in others if row["ahead"]["low"] <= 0]
    if not near:
        return f"{first['player']} is the strongest."
    named = f"{near[0]}" if len(near) == 1 else f"{len(near)} others"
    return f"{first['player']} is first, but not clearly ahead of {named}."


def _strengths(found: Found) -> Chart:
    names = [row["player"] for row in found["players"]]
    values = [
        {name: row[name] for name in ("player", "points", "low", "high")}
        for row in found["players"]
    ]
    zero = found["reference"] or "the players' mean"
    axis = {"labelLimit": 160, "domain": False, "ticks": False}
    y = {"field": "player", "type": "nominal", "sort": names, "title": None, "axis": axis}
    tooltip = [
        {"field": "player", "title": "player"},
        *({"field": name, "title": name, "format": ".0f"} for name in ("points", "low", "high")),
    ]
    colour = {"datum": "", "type": "nominal", "legend": None}  # the page's color, light or dark
    x: Spec = {"type": "quantitative", "title": "points", "scale": {"zero": False}}
    spec = {
        "height": max(190, ROW_HEIGHT // 2 * len(names)),
        "data": {"values": values},
        "encoding": {"y": y, "tooltip": tooltip, "color": colour},
        "layer": [
            {
                "mark": {"type": "rule"},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {"x": {**x, "field": "points"}},
            },
        ],
    }
    caption = f"Elo points from one fit of all games, with 95 % intervals; {zero} is 0."
    return {"title": "Ratings", "caption": caption, "spec": spec}


def _scores(found: Found, ranked: Sequence[str]) -> Chart:
    cells = [
        {
            **{"row": pair["player"], "column": pair["opponent"]},
            "mean": 2 * pair["score"]["mean"] - 1,
            "label": fixed(pair["score"]["mean"]),
            "count": pair["wins"] + pair["draws"] + pair["losses"],
        }
        for pair in found["pairs"]
    ]
    caption = "Score of the row's player against the column's; below it the number of games."
    return heat_map("Scores", cells, ranked, caption)


def _together(found: Found) -> list[Table]:
    """Return a table with the matrix of joint policy correlation; empty without one."""
    matrix = (found.get("together") or {}).get("matrix")
    if matrix is None:
        return []
    names = [row["player"] for row in found["nash"]]
    return [
        Table(
            "Joint policy correlation",
            ["first side", *names],
            [[name, *map(fixed, row)] for name, row in zip(names, matrix, strict=True)],
            "Mean sum of outcomes, the row's player at the first side and the column's at the "
            "others. The diagonal has players of the same run (arXiv 1711.00832).",
        )
    ]
