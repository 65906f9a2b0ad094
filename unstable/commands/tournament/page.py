"""The page of a tournament, with what this machine knows of its games."""

from collections.abc import Mapping
from typing import Any

from unstable.commands.report import sources
from unstable.commands.tournament.results import lines
from unstable.models.hub import cache_folder
from unstable.records.folder import RunFolder
from unstable.report.page import plot_library
from unstable.report.tournament import write_tournament_report


def write_tournament(folder: RunFolder, found: Mapping[str, Any]) -> None:
    """Write it as the folder's report."""
    write_tournament_report(folder, found, lines(found), plot_library(cache_folder()), sources)
