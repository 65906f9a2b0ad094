"""Recorded games as groups, in any order; the index holds only numbers, games stay in files."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from unstable.config import LearnConfig
from unstable.records.games import placed_games, read_game_with_branches
from unstable.records.reading import Skipped
from unstable.types import PAST, GameResult, PackedTrajectory, RecordedGame, Trajectory

SELF = "self"
"""Name among opponents for games in which every seat was trained."""


class Source(NamedTuple):
    """A run whose games are trained on."""

    files: Mapping[Path, int]  # bytes to read per games file
    trajectories: Callable[[RecordedGame], list[Trajectory]]
    judged: frozenset[tuple[int, int]] | None = None  # games and seats that a judge accepts


@dataclass(slots=True)
class IndexCounts:
    """Counts of an index."""

    games: int = 0
    groups: int = 0  # trained and held-out groups
    samples: int = 0
    held_out: int = 0  # held-out groups
    incomplete: int = 0  # groups with missing members
    filtered: int = 0  # trajectories removed by filters
    largest: int = 0  # trajectories of the largest group before filters


@dataclass(slots=True)
class _RecordedGroup:
    """A group that still lacks members."""

    missing: int
    is_held_out: bool
    places: list[int] = field(default_factory=list)  # file index and byte offset, alternating
    samples: int = 0
    members: int = 0
    left_out: int = 0


class GroupIndex:
    """Index of each group's games in files: 16 bytes per game and 40 per group.

    Ids of games and groups are made unique across runs. `learn` selects trajectories; `least` is
    the number that a group needs if some are left out.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        learn: LearnConfig,
        is_held_out: Callable[[GameResult], bool],
        *,
        least: int = 1,
        skipped: Skipped,
    ) -> None:
        self._sources, self._learn, self._least = sources, learn, least
        self._files: list[tuple[Path, int]] = []  # path and index of its source
        self._places, self._starts = array("q"), array("q", [0])
        self._owners = array("q")  # source index and its group id, alternating
        self._offsets: list[tuple[int, int]] = []  # of game and group ids, for each source
        self.sizes = array("q")
        """Number of samples of each group."""
        self.train: list[int] = []
        self.held_out: list[int] = []
        self.counts = IndexCounts()
        self.opponents: set[str] = set()
        """Names of all opponents in the games."""
        games = groups = 0
        for number, source in enumerate(sources):
            self._offsets.append((games, groups))
            last_game, last_group = self._read(number, source, is_held_out, skipped)
            games, groups = games + last_game + 1, groups + last_group + 1

    def _read(
        self,
        number: int,
        source: Source,
        is_held_out: Callable[[GameResult], bool],
        skipped: Skipped,
    ) -> tuple[int, int]:
        """Index a run's games; returns the highest ids of its games and groups."""
        waiting: dict[int, _RecordedGroup] = {}
        last_game = last_group = -1
        for path, end in source.files.items():
            self._files.append((path, number))
            for place, result in placed_games(path, skipped, end=end):
                for group_id, size in _groups_of(result):
                    if group_id not in waiting:
                        waiting[group_id] = _RecordedGroup(size, is_held_out(result))
                    last_group = max(last_group, group_id)
                last_game = max(last_game, *(game.spec.game_id for game in result.games))
                self._take(number, result, place, waiting)
        self.counts.incomplete += len(waiting)
        return last_game, last_group

    def _take(
        self, number: int, result: RecordedGame, place: int, waiting: dict[int, _RecordedGroup]
    ) -> None:
        """Index a game, and store the groups that it completes."""
        self.counts.games += 1
        self.opponents |= opponents_of(result)
        kept, others = self._split(number, result)
        self.counts.filtered += len(others)
        for each in others:
            waiting[each.group_id].left_out += 1
        for group_id in dict.fromkeys(each.group_id for each in kept):
            own = [each for each in kept if each.group_id == group_id]
            group = waiting[group_id]
            group.places += (len(self._files) - 1, place)
            group.samples += sum(len(each.samples) for each in own)
            group.members += len(own)
        self._arrive(number, result, waiting)

    def _split(
        self, number: int, result: RecordedGame
    ) -> tuple[list[Trajectory], list[Trajectory]]:
        """Split a game's trajectories into kept and filtered ones."""
        source = self._sources[number]
        games = {game.spec.game_id: game for game in result.games}
        sides: tuple[list[Trajectory], list[Trajectory]] = ([], [])
        for each in source.trajectories(result):
            kept = _keeps(self._learn, games[each.game_id], each, source.judged)
            sides[not kept].append(each)
        return sides

    def _arrive(self, number: int, result: GameResult, waiting: dict[int, _RecordedGroup]) -> None:
        """Count a game for the groups of its seats, and store the groups that are complete."""
        for group_id, _ in _groups_of(result):
            group = waiting[group_id]
            group.missing -= result.spec.branches or 1
            if group.missing:
                continue
            del waiting[group_id]
            self.counts.largest = max(self.counts.largest, group.members + group.left_out)
            if group.members >= (self._least if group.left_out else 1):
                self._put(number, group_id, group)

    def _put(self, number: int, group_id: int, group: _RecordedGroup) -> None:
        (self.held_out if group.is_held_out else self.train).append(len(self.sizes))
        self._places.extend(group.places)
        self._starts.append(len(self._places))
        self._owners.extend((number, group_id))
        self.sizes.append(group.samples)
        self.counts.groups += 1
        self.counts.held_out += group.is_held_out
        self.counts.samples += group.samples

    def groups(self, indices: Iterable[int], window: int) -> Iterator[tuple[PackedTrajectory, ...]]:
        """Yield the groups in this order; `window` of them are read at a time, each game once."""
        ahead: list[int] = []
        for index in indices:
            ahead.append(index)
            if len(ahead) == window:
                yield from self._window(ahead)
                ahead = []
        yield from self._window(ahead)

    def _window(self, indices: Sequence[int]) -> Iterator[tuple[PackedTrajectory, ...]]:
        """Yield the groups in this order; their games are read in the order of the files."""
        wanted: dict[tuple[int, int], set[int]] = {}  # groups by file index and byte offset
        found: dict[int, list[PackedTrajectory]] = {}
        for index in indices:
            found[index] = []
            places = self._places[self._starts[index] : self._starts[index + 1]]
            for pair in zip(places[::2], places[1::2], strict=True):
                wanted.setdefault(pair, set()).add(index)
        for (file, place), readers in sorted(wanted.items()):
            path, number = self._files[file]
            kept, _ = self._split(number, read_game_with_branches(path, place))
            for index in readers:
                group_id = self._owners[2 * index + 1]
                own = [each for each in kept if each.group_id == group_id]
                found[index] += [self._packed(number, each) for each in own]
        for index in indices:
            # The order in which `loop.mode: sync` admits them.
            yield tuple(sorted(found.pop(index), key=lambda each: (each.game_id, each.seat)))

    def _packed(self, number: int, own: Trajectory) -> PackedTrajectory:
        games, groups = self._offsets[number]
        return PackedTrajectory.of(
            replace(own, game_id=own.game_id + games, group_id=own.group_id + groups)
        )


def _keeps(
    learn: LearnConfig, game: GameResult, own: Trajectory, judged: Set[tuple[int, int]] | None
) -> bool:
    """Return whether a seat's trajectory is trained on; `judged` has the ones judges accept."""
    if learn.winners and not (own.outcome > 0 and game.forfeit is None):
        return False
    if learn.versions is not None:
        first, last = learn.versions
        if not all(first <= sample.version <= last for sample in own.samples):
            return False
    if learn.opponents and opponents_of(game).isdisjoint(learn.opponents):
        return False
    return judged is None or (own.game_id, own.seat) in judged


def opponents_of(game: GameResult) -> set[str]:
    """Return the names of a game's opponents, with `PAST` for a version, or `SELF` without any."""
    others = [seat.player for seat in game.spec.seats if not seat.trained]
    if not others:
        return {SELF}
    named = {other.name for other in others}
    return named | {PAST} if any(other.version is not None for other in others) else named


def _groups_of(result: GameResult) -> list[tuple[int, int]]:
    """Return the group of each trained seat of a game, and its number of trajectories."""
    seats = result.spec.seats
    return [(each.group_id, each.group_size) for each in seats if each.group_id is not None]
