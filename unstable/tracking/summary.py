"""What came out of a run, read from its files alone: so it holds for a resumed run as well."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table

from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped, by_key, measured, read_document, read_rows
from unstable.records.shapes import Ratings
from unstable.records.text import (
    NONE,
    against,
    bounds,
    command_line,
    difference,
    duration,
    fixed,
    number,
    percent,
)
from unstable.tracking.metrics import Row
from unstable.tracking.text import Text, table
from unstable.types import PlayerId
from unstable.types.metrics import SUMS, EvalKey, ExploitKey, VersusKey, WorstKey

DONE = "all updates made"
"""Why a run ends that has nothing left to do."""
TOP_RATINGS = 10
RESULTS = ("win", "draw", "loss", "forfeit")


def summary(folder: RunFolder, reason: str, *, reported: bool = False) -> RenderableType:
    """A run's results, evaluations, ratings and files, for a terminal.

    `reported`: a report is made next, and is one of the files.
    """
    skipped = Skipped()
    rows = read_rows(folder.metrics, skipped)
    parts: list[RenderableType] = [Text(""), _head(rows, reason)]
    ratings = _ratings(folder.ratings, skipped)
    tables = (_results(rows), _evaluations(rows), _exploitability(rows), ratings, _worst(rows))
    for each in tables:
        if each.row_count:
            parts += [Text(""), each]
    if guarded := _guard(rows):
        parts += [Text(""), Text("\n".join(guarded))]
    if skipped:
        parts += [Text(""), Text(skipped.line)]
    return Group(*parts, Text(""), _places(folder, reason, reported))


def _total(rows: list[Row], name: str) -> int:
    return round(sum(row.get(name) or 0 for row in rows))


def _head(rows: list[Row], reason: str) -> Text:
    seconds = sum(row.get("time/total") or 0.0 for row in rows)
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


def _results(rows: list[Row]) -> Table:
    """The policy in training, over the whole run, by what it played against.

    A row for each opponent, which add up where games have two sides; not the sums of several.
    """
    shown = table("Training games, a trained seat or team each", "against", "games", *RESULTS)
    for key, found in by_key(measured(VersusKey, rows, "games")).items():
        games = sum(each.figures["games"] for each in found)
        if not games or key.opponent in SUMS:
            continue
        shares = (
            sum(each.figures["games"] * (each.figures.get(share) or 0) for each in found) / games
            for share in RESULTS
        )
        shown.add_row(Text(key.opponent), f"{games:,.0f}", *map(percent, shares))
    return shown


def _evaluations(rows: list[Row]) -> Table:
    """First against last evaluation."""
    columns = ["env", "against", "first", "95 %", "last", "95 %", "games", "legal moves"]
    found = by_key(measured(EvalKey, rows, "score"))
    pays = any(each.figures.get("payoff") is not None for key in found for each in found[key])
    title = "Evaluation: wins plus half the draws, per game"
    if pays:
        title, columns = f"{title}; pay-off: mean of a game", [*columns, "last pay-off, 95 %"]
    shown = table(title, *columns)
    for key, scored in found.items():
        cells = []
        for figures in (scored[0].figures, scored[-1].figures):
            ends = bounds(figures["low"], figures["high"], between="–", digits=2)
            cells += [fixed(figures["score"]), ends]
        last = scored[-1].figures
        games, distinct = last["games"], last.get("distinct", last["games"])
        repeated = f" ({number(distinct)} distinct)" if distinct != games else ""
        cells += [f"{number(games)}{repeated}", percent(last["legal_moves"])]
        if pays:
            cells.append("" if last.get("payoff") is None else difference(last, "payoff"))
        shown.add_row(Text(key.env), Text(against(key.opponent, key.mode)), *cells)
    return shown


def _exploitability(rows: list[Row]) -> Table:
    """First against last measurement."""
    columns = ["env", "first", "last", "at version", "illegal", "decisions"]
    solved = by_key(measured(ExploitKey, rows, "low"))
    if has_past := any(f[-1].figures.get("past_low") is not None for f in solved.values()):
        columns += ["wins at least", "from"]
    shown = table("Exploitability, in the game's pay-offs; 0 is an equilibrium", *columns)
    for key, found in solved.items():
        ends = (each.figures for each in (found[0], found[-1]))
        last = found[-1].figures
        shown.add_row(
            Text(key.env),
            *(bounds(figures["low"], figures["high"], between="–") for figures in ends),
            str(found[-1].version),
            percent(last.get("illegal_mass")),
            number(last.get("decisions")),
            *(_least_won(last) if has_past else ()),
        )
    return shown


def _least_won(figures: Mapping[str, float]) -> tuple[str, str]:
    """What a version wins, at least, from any measured before it, and from which of how many."""
    if figures.get("past_low") is None:
        return NONE, NONE
    won = bounds(figures["past_low"], figures["past_high"], between="–")
    member, compared = (round(figures[f"past_{name}"]) for name in ("member", "compared"))
    return won, f"version {member} of {compared}"


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


def _ratings(path: Path, skipped: Skipped) -> Table:
    """The strongest players."""
    shown = table("Ratings", "player", "mu", "sigma", "games", "won", "drawn", "lost", "forfeits")
    found = read_document(path, Ratings, skipped) or Ratings(players=[])
    for row in sorted(found.players, key=lambda row: -row.mu)[:TOP_RATINGS]:
        counts = (row.games, row.wins, row.draws, row.losses, row.forfeits)
        rating = (f"{row.mu:.1f}", f"{row.sigma:.1f}")
        shown.add_row(Text(row.player), *rating, *(f"{count:,}" for count in counts))
    return shown


def _worst(rows: list[Row]) -> Table:
    """The newest versions' least score against any before them, as last known."""
    columns = ("policy", "least score", "95 %", "against", "games", "past versions", "left out")
    shown = table("Worst case: the newest versions against each version before them", *columns)
    for key, found in by_key(measured(WorstKey, rows, "score")).items():
        last = found[-1].figures
        shown.add_row(
            Text(key.policy),
            fixed(last["score"]),
            bounds(last["low"], last["high"], between="–", digits=2),
            Text(PlayerId.policy(round(last["against"]), key.policy).name),
            *(number(last[name]) for name in ("games", "compared", "left_out")),
        )
    return shown


def _places(folder: RunFolder, reason: str, reported: bool) -> Text:
    versions = folder.versions()
    last = folder.checkpoint(versions[-1]) if versions else folder.checkpoints
    lines: dict[str, object] = {
        "everything": folder.root,
        "weights": last,
        "metrics": folder.metrics,
        "games": folder.root / "games",
        "logs": folder.root / "logs",
    }
    if reported:
        lines["report"] = folder.report
    if reason != DONE and any(folder.state(version).exists() for version in versions):
        lines["to go on"] = command_line("unstable", "train", "--resume", folder.root)
    return Text("\n".join(f"{what:<12}{path}" for what, path in lines.items()))
