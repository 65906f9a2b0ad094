"""Exact policies of measured versions in small games, in files of a run's folder."""

from collections.abc import Mapping

from unstable.records.files import json_line, write_whole
from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped, read_document
from unstable.records.shapes import Policies
from unstable.types import Shares

MOST_COMPARED = 16
"""Maximum number of earlier versions that a version is compared with, evenly spaced."""


def write_policies(folder: RunFolder, version: int, policies: Mapping[str, Shares]) -> None:
    """Write a version's policy in each game, a list of probabilities for each decision in order."""
    games = {
        game: [list(shares[at]) for at in range(len(shares))] for game, shares in policies.items()
    }
    path = folder.policies(version)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, json_line(Policies(games=games)))


def read_policies(folder: RunFolder, before: int, skipped: Skipped) -> dict[str, dict[int, Shares]]:
    """Return policies of versions before one, by game: the newest and others evenly spaced."""
    known = [version for version in folder.measured() if version < before]
    count = min(len(known), MOST_COMPARED)
    step = (len(known) - 1) / max(1, count - 1)
    found: dict[str, dict[int, Shares]] = {}
    for version in (known[round(at * step)] for at in range(count)):
        for game, shares in read_policy(folder, version, skipped).items():
            found.setdefault(game, {})[version] = shares
    return found


def read_policy(folder: RunFolder, version: int, skipped: Skipped) -> dict[str, Shares]:
    """Return a version's policies by game; {} if they are missing or damaged."""
    record = read_document(folder.policies(version), Policies, skipped)
    games = {} if record is None else record.games
    return {game: dict(enumerate(shares)) for game, shares in games.items()}
