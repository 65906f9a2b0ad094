"""Buffer of whole groups, with bounded size and staleness."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import BaseModel

from unstable.types import GameSpec, PackedBatch, PackedTrajectory

Place = tuple[int, int]
"""Origin of a trajectory: its game's id and its seat."""


class Dropped(BaseModel):
    """Number of samples dropped since the start, by reason."""

    stale: int
    capacity: int
    failed: int
    tied: int


class BufferState(BaseModel):
    """Content of a buffer: groups by the places of their trajectories, and counters.

    A waiting group has its id, the number of missing members, whether one failed, and its places.
    Groups drawn for an update that is not made yet come first in `groups`.
    """

    groups: list[tuple[int, list[Place]]]
    waiting: list[tuple[int, int, bool, list[Place]]]
    tied_since_draw: int
    dropped: Dropped


@dataclass(slots=True)
class _PartialGroup:
    """A group that is still missing members."""

    missing: int
    failed: bool = False
    trajectories: list[PackedTrajectory] = field(default_factory=list)


class _Whole(NamedTuple):
    """A complete group, with precomputed properties."""

    group: tuple[PackedTrajectory, ...]
    version: int  # the oldest among its samples
    num_samples: int
    named: tuple[int, list[Place]]  # its entry in `BufferState.groups`


def _num_samples(trajectories: Iterable[PackedTrajectory]) -> int:
    return sum(each.num_samples for each in trajectories)


def _places(trajectories: Iterable[PackedTrajectory]) -> list[Place]:
    return [(each.game_id, each.seat) for each in trajectories]


class Buffer:
    """A bounded queue of whole groups, in the order of their completion.

    The oldest groups are dropped while `capacity` samples remain without them, so the buffer
    exceeds `capacity` by less than one group. A group that is missing members waits outside the
    queue; if a member's game failed, the group is dropped once its last member arrives. A member
    without a turn of its own (the opponent forfeited first) counts as arrived. `max_staleness` is
    enforced when a batch is drawn: groups that are too old then are dropped. With `max_tied`,
    groups whose trajectories have equal rewards are dropped so that others are played instead
    (dynamic sampling, DAPO, https://arxiv.org/abs/2503.14476), at most that many samples between
    two batches. All dropped samples are counted.
    """

    def __init__(
        self, capacity: int, batch_size: int, max_staleness: int, max_tied: int | None = None
    ) -> None:
        self.capacity = capacity
        self.batch_size = batch_size
        self._max_staleness = max_staleness
        self._max_tied = max_tied
        self._waiting: dict[int, _PartialGroup] = {}
        self._groups: dict[int, _Whole] = {}
        self._drawn: dict[int, _Whole] = {}
        self._drawn_for = 0  # version whose update trains on them
        self._size = 0
        self._by_version: Counter[int] = Counter()  # samples
        self._tied_since_draw = 0
        self.dropped = Dropped(stale=0, capacity=0, failed=0, tied=0)

    def add(self, spec: GameSpec, trajectories: Sequence[PackedTrajectory]) -> None:
        """Add a finished game's trajectories, including its branches'.

        Raises `RuntimeError` if more than `max_tied` samples are dropped since the last batch.
        """
        for trajectory in trajectories:
            self._group(trajectory.group_id, spec).trajectories.append(trajectory)
        self._arrive(spec, failed=False)
        while self._groups and self._size - self._oldest.num_samples >= self.capacity:
            self.dropped.capacity += self._take(next(iter(self._groups))).num_samples

    def lose(self, spec: GameSpec) -> None:
        """Record a failed game: the groups of its seats can never be whole."""
        self._arrive(spec, failed=True)

    def _group(self, group_id: int, spec: GameSpec) -> _PartialGroup:
        size = next(seat.group_size for seat in spec.seats if seat.group_id == group_id)
        return self._waiting.setdefault(group_id, _PartialGroup(missing=size))

    def _arrive(self, spec: GameSpec, failed: bool) -> None:
        for group_id in [seat.group_id for seat in spec.seats if seat.group_id is not None]:
            group = self._group(group_id, spec)
            group.missing -= spec.branches or 1
            group.failed |= failed
            if group.missing == 0:
                self._complete(group_id, self._waiting.pop(group_id))

    def _complete(self, group_id: int, waiting: _PartialGroup) -> None:
        group = tuple(waiting.trajectories)
        if waiting.failed:
            self.dropped.failed += _num_samples(group)
        elif self._max_tied is not None and len({each.reward for each in group}) == 1:
            self.dropped.tied += _num_samples(group)
            self._tied_since_draw += _num_samples(group)
            if self._tied_since_draw > self._max_tied:
                raise RuntimeError(
                    f"groups.drop_tied = true: dropped {self._tied_since_draw} samples of groups "
                    "with equal rewards before a batch was full; set groups.drop_tied to false or "
                    "raise groups.size"
                )
        elif group:
            self._put(group_id, group)

    def _put(self, group_id: int, group: tuple[PackedTrajectory, ...]) -> None:
        version = min(each.version for each in group)
        whole = _Whole(group, version, _num_samples(group), (group_id, _places(group)))
        self._groups[group_id] = whole
        self._size += whole.num_samples
        self._by_version[whole.version] += whole.num_samples

    @property
    def _oldest(self) -> _Whole:
        return next(iter(self._groups.values()))

    def _take(self, group_id: int) -> _Whole:
        """Remove a group and return it."""
        group = self._groups.pop(group_id)
        self._size -= group.num_samples
        self._by_version[group.version] -= group.num_samples
        if not self._by_version[group.version]:
            del self._by_version[group.version]
        return group

    @property
    def size(self) -> int:
        """Number of samples in complete groups."""
        return self._size

    def ready(self, version: int) -> int:
        """Return the number of samples that an update of `version` could train on."""
        held = self._by_version.items()
        return sum(samples for of, samples in held if not self._is_stale(of, version))

    def draw(self, version: int) -> PackedBatch | None:
        """Remove and return the oldest groups that fill a batch; None if there are too few.

        Groups with a sample more than `max_staleness` versions behind `version` are dropped.
        """
        for group_id, group in list(self._groups.items()):
            if self._is_stale(group.version, version):
                self.dropped.stale += self._take(group_id).num_samples
        if self.size < self.batch_size:
            return None
        self._drawn, self._drawn_for = {}, version
        size = 0
        while size < self.batch_size:
            group_id = next(iter(self._groups))
            self._drawn[group_id] = oldest = self._take(group_id)
            size += oldest.num_samples
        self._tied_since_draw = 0
        return PackedBatch(version, tuple(whole.group for whole in self._drawn.values()))

    def stats(self) -> dict[str, float]:
        """Return the numbers of samples held and of samples dropped since the start."""
        return {
            "size": self.size,
            "waiting": sum(_num_samples(each.trajectories) for each in self._waiting.values()),
            **{f"dropped_{reason}": samples for reason, samples in self.dropped},
        }

    def state(self, version: int) -> BufferState:
        """Return all that a run needs to resume from `version`, except the trajectories."""
        held = (self._drawn_at(version) | self._groups).values()
        return BufferState.model_construct(
            groups=[whole.named for whole in held],
            waiting=[
                (group_id, waiting.missing, waiting.failed, _places(waiting.trajectories))
                for group_id, waiting in self._waiting.items()
            ],
            tied_since_draw=self._tied_since_draw,
            dropped=self.dropped,
        )

    def oldest(self, version: int) -> int:
        """Return the oldest version that sampled any held sample; `version` if none is held."""
        waiting = (t.version for each in self._waiting.values() for t in each.trajectories)
        drawn = (whole.version for whole in self._drawn_at(version).values())
        return min([version, *self._by_version, *waiting, *drawn])

    def _drawn_at(self, version: int) -> dict[int, _Whole]:
        """Return the groups that were drawn for an update of `version`."""
        return self._drawn if self._drawn_for == version else {}

    def restore(self, state: BufferState, trajectories: Mapping[Place, PackedTrajectory]) -> int:
        """Restore the content of `state` from these trajectories.

        Returns the number of groups that are dropped, now or later, for a missing trajectory.
        """
        lost = 0
        for group_id, places in state.groups:
            found = [trajectories[place] for place in places if place in trajectories]
            if len(found) == len(places):
                self._put(group_id, tuple(found))
            lost += len(found) < len(places)
        for group_id, missing, failed, places in state.waiting:
            found = [trajectories[place] for place in places if place in trajectories]
            lacks = len(found) < len(places)
            self._waiting[group_id] = _PartialGroup(missing, failed or lacks, found)
            lost += lacks
        self._tied_since_draw = state.tied_since_draw
        self.dropped = state.dropped.model_copy()
        return lost

    def _is_stale(self, of: int, version: int) -> bool:
        return version - of > self._max_staleness
