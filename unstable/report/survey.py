"""Single pass over a run's recorded games: pairings, their results, and each game's location."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from statistics import fmean
from typing import Any, NamedTuple

from unstable.records.scan import GameLocation, scan_games
from unstable.records.text import signed
from unstable.report.run import Run
from unstable.types import PlayerId, RecordedGame

MOST_GROUPS = 6
"""Maximum number of groups of versions in the heat map; more versions share a group."""


class Met(NamedTuple):
    """Results of a player against another: their number, and the sum of their outcomes."""

    results: int
    total: float


Pairs = dict[tuple[str, str], Met]
"""Pairs: {("main@1", "random"): Met(2, 1.0)}, the first player's results against the second."""


@dataclass(slots=True)
class GamesSurvey:
    """Findings of a pass over a run's games; `games` and `pairs` have counts and results by env."""

    places: list[GameLocation] = field(default_factory=list)
    games: Counter[str] = field(default_factory=Counter)
    pairs: dict[str, Pairs] = field(default_factory=dict)


def survey(run: Run) -> GamesSurvey:
    """Return the survey of all recorded games of a run, in the order of versions."""
    found = GamesSurvey()
    for place, game in scan_games(run.folder, run.skipped):
        found.places.append(place)
        found.games[game.spec.env] += 1
        _add(found.pairs.setdefault(game.spec.env, {}), game)
    return found


def _add(pairs: Pairs, game: RecordedGame) -> None:
    """Add a game's results, of each side against each other side; one player holds a side."""
    seats = game.spec.seats
    for side, other in permutations(game.spec.sides, 2):
        key = (seats[side[0]].player.name, seats[other[0]].player.name)
        before = pairs.get(key, Met(0, 0.0))
        outcome = fmean(game.outcomes[seat] for seat in side)
        pairs[key] = Met(before.results + 1, before.total + outcome)


def payoff_cells(pairs: Mapping[tuple[str, str], Met]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the heat map's cells, and its players in order: groups of versions, then others."""
    names = {name for pair in pairs for name in pair}
    labels = _labels(names)
    merged: Pairs = {}
    for (player, opponent), met in pairs.items():
        key = labels[player], labels[opponent]
        before = merged.get(key, Met(0, 0.0))
        merged[key] = Met(before.results + met.results, before.total + met.total)
    cells = [
        {
            "row": row,
            "column": column,
            "mean": met.total / met.results,
            "label": signed(met.total / met.results),
            "count": met.results,
        }
        for (row, column), met in merged.items()
    ]
    return cells, list(dict.fromkeys(labels.values()))


def _labels(names: set[str]) -> dict[str, str]:
    """Return the labels of players in the heat map, in its order."""
    policies: dict[str, list[int]] = {}
    for player in map(PlayerId.parse, sorted(names)):
        if player.version is not None:
            policies.setdefault(player.label, []).append(player.version)
    labels = {
        PlayerId.policy(version, policy).name: _group(version, versions)
        for policy, unsorted in policies.items()
        for versions in [sorted(unsorted)]
        for version in versions
    }
    return labels | {name: name for name in sorted(names - labels.keys())}


def _group(version: int, versions: list[int]) -> str:
    """Return the version's name, or the name of its range if there are many versions."""
    if len(versions) <= MOST_GROUPS:
        return f"v{version}"
    first, last = versions[0], versions[-1]
    width = -(-(last - first + 1) // MOST_GROUPS)
    begin = first + (version - first) // width * width
    return f"v{begin}–{min(begin + width - 1, last)}"
