"""Ratings of a run, rebuilt from its recorded games in the order in which it counted them."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from unstable.config import RunConfig, load
from unstable.league.evaluation import rated_games
from unstable.league.fit import Ranking, ranking
from unstable.league.matchmaking import Met
from unstable.loop.context import make_registry
from unstable.loop.state import RunState, parse
from unstable.records.folder import GameFile, RunFolder
from unstable.records.reading import Skipped, read_document, read_rows
from unstable.records.scan import scan_file
from unstable.records.shapes import Ratings
from unstable.types import GameResult, PlayerId, Rating


class Rebuilt(NamedTuple):
    """A run's games as input of the fit, and its registry at the last write of `ratings.json`.

    `difference` is the largest difference of any figure from that file; None without it. `met` is
    how often past versions were drawn as opponents, and the expected count; `drawn` is the pair for
    envs if a curriculum draws them.
    """

    folder: RunFolder
    config: RunConfig
    games: list[Ranking]
    ratings: list[Rating]
    difference: float | None
    met: Met
    drawn: Met


def rebuild(folder: RunFolder, skipped: Skipped) -> Rebuilt:
    """Rebuild a run's ratings from its games, in the order in which the run counted them.

    Files have training games in the order in which they ended. If play and learning alternate, the
    run counted them by number in each round. The registry's marks, kept in the run's state, record
    when rounds ended, versions began and evaluations counted.
    """
    config = load(str(folder.config))
    registry, saved = make_registry(config), read_document(folder.ratings, Ratings, skipped)
    until = -1 if saved is None else sum(row.games for row in saved.players)
    is_run, state = _is_run(folder), _state(folder)
    if state is not None and state.registry.anchor != "":
        registry.pin(state.registry.anchor)
    games, counted, shown = list[Ranking](), 0, list[Rating]()
    for step in _steps(folder, config, skipped):
        if isinstance(step, GameResult):
            if not is_run:
                for seat in step.spec.seats:
                    registry.know(seat.player)
            registry.record([step])
            if (ranked := ranking(step)) is not None:
                games.append(ranked)
                held = len(set(ranked.players))
                counted += held if held > 1 else 0
        else:
            registry.add(*step)
            registry.announce(step[0])
        if counted == until:
            shown = registry.ratings()
    shown = shown or registry.ratings()
    met, drawn = ({}, {}) if state is None else (state.schedule.met, state.schedule.drawn)
    return Rebuilt(folder, config, games, shown, _difference(shown, saved), met, drawn)


def _is_run(folder: RunFolder) -> bool:
    """Return whether a run made the games, not a tournament, a person or clients."""
    return not folder.tournament.is_file() and bool(folder.metrics.is_file() or folder.versions())


Added = tuple[PlayerId, PlayerId | None]
"""A version, and the one whose rating it inherits; None: the version before it."""


def _steps(folder: RunFolder, config: RunConfig, skipped: Skipped) -> Iterator[GameResult | Added]:
    """Yield the versions and the rated games of a run, in order."""
    files = {(file.purpose, file.version): file for file in folder.game_files()}
    rows = read_rows(folder.metrics, skipped)
    back = {row["version"]: row.get("guard/rolled_back_to") for row in rows}
    is_run = _is_run(folder)
    versions = range(max([0, *back, *(version for _, version in files)]) + 1)
    state = _state(folder)
    marks = deque(_Mark(*mark) for mark in ([] if state is None else state.registry.marks))
    marks = marks or deque(_Mark(k, v, None) for v in versions for k in ("added", "evaluated"))
    rounds = [mark.after for mark in marks if mark.kind == "played" and mark.after is not None]
    number = 0

    def next_step() -> Iterator[GameResult | Added]:
        kind, of, _ = marks.popleft()
        if kind == "added" and is_run:
            source = back.get(of)
            yield PlayerId.policy(of), None if source is None else PlayerId.policy(int(source))
        elif kind == "evaluated" and ("eval", of) in files:
            by_number = {r.spec.game_id: r for r in results_of(files["eval", of], skipped)}
            ordered = [by_number[each] for each in sorted(by_number)]
            yield from rated_games(config, of, ordered) if is_run else ordered

    for version in versions:
        # If the run's games are complete, these marks have passed by now.
        while any(mark.kind == "added" and mark.version <= version for mark in marks):
            yield from next_step()
        file = files.get(("train", version))
        results = [] if file is None else results_of(file, skipped)
        if config.loop.mode == "sync":
            results = _by_round(results, [after - number for after in rounds])
        for result in results:
            while marks and marks[0].is_before(number, version):
                yield from next_step()
            number += 1
            yield result
    while marks:
        yield from next_step()


class _Mark(NamedTuple):
    """An event and the number of training games before it (`RegistryState.marks`)."""

    kind: str
    version: int
    after: int | None  # None: before its version's games

    def is_before(self, number: int, version: int) -> bool:
        """Return whether it precedes the training game of that number, counted from 0."""
        return self.version <= version if self.after is None else self.after <= number


def _state(folder: RunFolder) -> RunState | None:
    """Return a run's newest valid state; None without one."""
    for version in reversed(folder.versions()):
        path = folder.state(version)
        state = parse(path.read_bytes(), version) if path.is_file() else None
        if state is not None:
            return state
    return None


def _by_round(results: Sequence[GameResult], ends: Iterable[int]) -> list[GameResult]:
    """Return results sorted by number within each round; `ends` are the indices of round ends."""
    cuts = [0, *(end for end in ends if 0 < end < len(results)), len(results)]
    rounds = (results[first:last] for first, last in pairwise(cuts))
    return [each for part in rounds for each in sorted(part, key=lambda r: r.spec.game_id)]


def results_of(file: GameFile, skipped: Skipped) -> list[GameResult]:
    """Return a file's games without turns, and without branches, which are not rated."""
    results, branches = list[GameResult](), range(0)
    for place, head in scan_file(file, skipped):
        if file.purpose == "eval" or place.game not in branches:
            branches = range(place.game + 1, place.game + head.spec.branches + 1)
            results.append(head)
    return results


def _difference(found: Sequence[Rating], saved: Ratings | None) -> float | None:
    """Return the largest difference of a figure: None without `saved`, inf if players differ."""
    if saved is None:
        return None
    rows = {row.player: row for row in saved.players}
    if rows.keys() != {each.player.name for each in found}:
        return math.inf
    names = ("mu", "sigma", "games", "wins", "draws", "losses", "forfeits")
    return max(
        (
            abs(getattr(e, name) - getattr(rows[e.player.name], name))
            for e in found
            for name in names
        ),
        default=0.0,
    )
