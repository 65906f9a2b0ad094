"""What came out of a run, read from its files alone: so it holds for a resumed run as well."""

import json
import shlex
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table

from unstable.config import check_format
from unstable.records.files import read_rows
from unstable.records.folder import RunFolder
from unstable.tracking.metrics import Row
from unstable.tracking.text import Text, duration, number, percent, with_interval

DONE = "all updates made"
"""Why a run ends that has nothing left to do."""
TOP_RATINGS = 10
RESULTS = ("win", "draw", "loss", "forfeit")


def summary(folder: RunFolder, reason: str, *, reported: bool = False) -> RenderableType:
    """A run's results, evaluations, ratings and files, for a terminal.

    `reported`: a report is made next, and is one of the files.
    """
    rows = read_rows(folder.metrics)
    parts: list[RenderableType] = [Text(""), _head(rows, reason)]
    tables = (_results(rows), _evaluations(rows), _exploitability(rows), _ratings(folder.ratings))
    for table in tables:
        if table.row_count:
            parts += [Text(""), table]
    if guarded := _guard(rows):
        parts += [Text(""), Text("\n".join(guarded))]
    return Group(*parts, Text(""), _places(folder, reason, reported))


def _total(rows: list[Row], name: str) -> int:
    return round(sum(row.get(name) or 0 for row in rows))


def _head(rows: list[Row], reason: str) -> Text:
    seconds = sum(row["time/total"] or 0.0 for row in rows)
    parts = [
        f"version {rows[-1]['version'] if rows else 0}",
        f"{_total(rows, 'collect/games'):,} games",
        f"{_total(rows, 'collect/trained_turns'):,} trained turns",
        f"{_total(rows, 'collect/forfeits'):,} forfeits",
        f"{_total(rows, 'collect/failures'):,} failed",
        duration(seconds),
    ]
    return Text(f"The run ended: {reason}\n", style="bold").append(
        " · ".join(parts), style="not bold"
    )


def _table(title: str, *columns: str) -> Table:
    """A table whose first column is words and whose others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", header_style="dim")
    return table


def _results(rows: list[Row]) -> Table:
    """The policy in training, over the whole run, by what it played against.

    A row for each opponent, which add up where games have two sides; not the sums of several.
    """
    table = _table("Training games, a trained seat or team each", "against", "games", *RESULTS)
    prefix = "collect/versus/"
    names = {name.split("/")[2]: None for row in rows for name in row if name.startswith(prefix)}
    for name in (name for name in names if name not in ("others", "fixed")):
        games = [row.get(f"{prefix}{name}/games") or 0 for row in rows]
        if not sum(games):
            continue
        shares = [
            sum(
                n * (row.get(f"{prefix}{name}/{share}") or 0)
                for n, row in zip(games, rows, strict=True)
            )
            / sum(games)
            for share in RESULTS
        ]
        table.add_row(Text(name), f"{sum(games):,.0f}", *(percent(share) for share in shares))
    return table


def _evaluations(rows: list[Row]) -> Table:
    """First against last evaluation."""
    columns = ["env", "against", "first", "95 %", "last", "95 %", "games", "legal moves"]
    names = {name.rpartition("/")[0]: None for row in rows for name in row if name[:5] == "eval/"}
    pays = any(row.get(f"{name}/payoff") is not None for name in names for row in rows)
    title = "Evaluation: wins plus half the draws, per game"
    if pays:
        title, columns = f"{title}; pay-off: mean of a game", [*columns, "last pay-off, 95 %"]
    table = _table(title, *columns)
    for name in names:
        scored = [row for row in rows if row.get(f"{name}/score") is not None]
        if not scored:
            continue
        _, env, *opponent = name.split("/")
        cells = []
        for row in (scored[0], scored[-1]):
            score, low, high = (row[f"{name}/{field}"] or 0.0 for field in ("score", "low", "high"))
            cells += [f"{score:.2f}", f"{low:.2f}–{high:.2f}"]
        last = scored[-1]
        games, distinct = last[f"{name}/games"], last.get(f"{name}/distinct")
        repeated = f" ({number(distinct)} distinct)" if distinct != games and distinct else ""
        cells += [f"{number(games)}{repeated}", percent(last[f"{name}/legal_moves"])]
        if pays:
            value, *ends = (last.get(f"{name}/payoff{end}") for end in ("", "_low", "_high"))
            cells.append("" if value is None else with_interval(value, *ends))
        table.add_row(Text(env), Text(", ".join(opponent)), *cells)
    return table


def _exploitability(rows: list[Row]) -> Table:
    """First against last measurement."""
    columns = ("env", "first", "last", "at version", "illegal", "decisions")
    table = _table("Exploitability, in the game's pay-offs; 0 is an equilibrium", *columns)
    names = {
        name.rpartition("/")[0]: None for row in rows for name in row if name[:8] == "exploit/"
    }
    for name in names:
        found = [row for row in rows if row.get(f"{name}/low") is not None]
        if not found:
            continue
        first, last = (
            [f"{row[f'{name}/{end}']:.3f}" for end in ("low", "high")]
            for row in (found[0], found[-1])
        )
        table.add_row(
            Text(name.removeprefix("exploit/")),
            "–".join(dict.fromkeys(first)),
            "–".join(dict.fromkeys(last)),
            str(found[-1]["version"]),
            percent(found[-1][f"{name}/illegal_mass"]),
            number(found[-1][f"{name}/decisions"]),
        )
    return table


def _guard(rows: list[Row]) -> list[str]:
    """Alarms by their rule, and what they led to; nothing if there was none."""
    count = _total(rows, "guard/alarms")
    if not count:
        return []
    lines = [f"Guard: {count} {'alarm' if count == 1 else 'alarms'} (docs/guard.md)"]
    for prefix, what in (("guard/alarm/", ""), ("guard/action/", "action ")):
        for name in dict.fromkeys(name for row in rows for name in row if name.startswith(prefix)):
            at = [f"{row['version']}" for row in rows if row.get(name) is not None]
            lines.append(f"{what}{name.removeprefix(prefix)} at version {', '.join(at)}")
    return lines


def _ratings(path: Path) -> Table:
    """The strongest players."""
    table = _table("Ratings", "player", "mu", "sigma", "games", "won", "drawn", "lost", "forfeits")
    table_file = json.loads(path.read_bytes()) if path.exists() else {}
    check_format(table_file, path)
    players = table_file.get("players", [])
    for player in sorted(players, key=lambda player: -player["mu"])[:TOP_RATINGS]:
        counts = (player[name] for name in ("games", "wins", "draws", "losses", "forfeits"))
        rating = (f"{player['mu']:.1f}", f"{player['sigma']:.1f}")
        table.add_row(Text(player["player"]), *rating, *(f"{count:,}" for count in counts))
    return table


def _places(folder: RunFolder, reason: str, reported: bool) -> Text:
    versions = folder.versions()
    last = folder.checkpoint(versions[-1]) if versions else folder.checkpoints
    lines: dict[str, object] = {
        "everything": folder.root,
        "adapter": last,
        "metrics": folder.metrics,
        "games": folder.root / "games",
        "logs": folder.root / "logs",
    }
    if reported:
        lines["report"] = folder.report
    if reason != DONE and any(folder.state(version).exists() for version in versions):
        lines["to go on"] = f"unstable train --resume {shlex.quote(str(folder.root))}"
    return Text("\n".join(f"{what:<12}{path}" for what, path in lines.items()))
