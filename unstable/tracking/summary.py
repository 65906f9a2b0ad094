"""Results of a run for a terminal, read from its files so that they cover a resumed run too."""

from rich.console import Group, RenderableType

from unstable.records import tables
from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped
from unstable.records.summary import RunSummary
from unstable.records.text import command_line
from unstable.tracking.text import Text, table

DONE = "all updates made"
"""Reason for the end of a run that made all its updates."""
_SHOWN = ("env", "against", "first", "version", "score", "payoff", "games", "legal moves")


def summary(folder: RunFolder, reason: str, *, reported: bool = False) -> RenderableType:
    """Return a run's results, evaluations, ratings and files.

    With `reported`, a report follows and is listed among the files.
    """
    skipped = Skipped()
    found = RunSummary.read(folder, skipped)
    version, games, *counts, time = tables.facts(found)
    head = [" ".join(version), *(f"{value} {name}" for name, value in (games, *counts)), time[1]]
    parts: list[RenderableType] = [
        Text(""),
        Text(f"The run ended: {reason}\n", style="bold").append(" · ".join(head), style="not bold"),
    ]
    for each in (
        tables.results(found),
        tables.evaluations(found).only(*_SHOWN),
        tables.exploitability(found),
        tables.ratings(found),
        tables.worst(found),
        tables.guard(found),
    ):
        if each.rows:
            parts += [Text(""), table(each)]
    if skipped:
        parts += [Text(""), Text(skipped.line)]
    return Group(*parts, Text(""), _places(folder, reason, reported))


def _places(folder: RunFolder, reason: str, reported: bool) -> Text:
    versions = folder.versions()
    last = folder.checkpoint(versions[-1]) if versions else folder.checkpoints
    lines: dict[str, object] = {
        "run folder": folder.root,
        "weights": last,
        "metrics": folder.metrics,
        "games": folder.root / "games",
        "logs": folder.root / "logs",
    }
    if reported:
        lines["report"] = folder.report
    if reason != DONE and any(folder.state(version).exists() for version in versions):
        lines["to resume"] = command_line("unstable", "train", "--resume", folder.root)
    return Text("\n".join(f"{what:<12}{path}" for what, path in lines.items()))
