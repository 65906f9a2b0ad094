"""The buffer: bounded, aware of versions, and never splits a group."""

from dataclasses import dataclass, field

from unstable.types import Batch, GameSpec, Sample, Trajectory


@dataclass(slots=True)
class _Waiting:
    """A group that still misses members."""

    missing: int
    failed: bool = False
    trajectories: list[Trajectory] = field(default_factory=list)

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(sample for member in self.trajectories for sample in member.samples)

    @property
    def tied(self) -> bool:
        """Whether every trajectory earned the same, so that comparing them teaches nothing."""
        return len({member.reward for member in self.trajectories}) == 1


class Buffer:
    """Whole groups in the order in which they were completed.

    The oldest leave as long as `capacity` samples remain without them, so that at most one group's
    samples are held beyond it.
    A group that is still missing members waits outside the order; one that lost a member by a
    failure is dropped when its last one has come. A member without a turn of its own (the opponent
    forfeited first) counts as come. `max_staleness` is enforced at the moment of use: what is too
    old when a batch is drawn is dropped. With `max_tied`, groups whose trajectories earned the same
    are dropped so that others are played instead (dynamic sampling, DAPO,
    https://arxiv.org/abs/2503.14476), at most that many samples between two batches. All that is
    dropped is counted.
    """

    def __init__(
        self, capacity: int, batch_size: int, max_staleness: int, max_tied: int | None = None
    ) -> None:
        self._capacity = capacity
        self._batch_size = batch_size
        self._max_staleness = max_staleness
        self._max_tied = max_tied
        self._waiting: dict[int, _Waiting] = {}
        self._groups: dict[int, tuple[Sample, ...]] = {}
        self._tied_since_draw = 0
        self.dropped_stale = 0
        self.dropped_capacity = 0
        self.dropped_failed = 0
        self.dropped_tied = 0

    def add(self, spec: GameSpec, trajectories: list[Trajectory]) -> None:
        """Take a finished game's trajectories, its branches' included.

        Raises `RuntimeError` once more than `max_tied` samples were dropped for one batch.
        """
        for trajectory in trajectories:
            self._group(trajectory.group_id, spec).trajectories.append(trajectory)
        self._arrive(spec, failed=False)
        size = self.size
        for group_id, samples in list(self._groups.items()):
            if size - len(samples) < self._capacity:
                break
            size -= len(samples)
            self.dropped_capacity += len(self._groups.pop(group_id))

    def lose(self, spec: GameSpec) -> None:
        """Take notice of a game that failed: the groups of its seats can never be whole."""
        self._arrive(spec, failed=True)

    def _group(self, group_id: int, spec: GameSpec) -> _Waiting:
        size = next(seat.group_size for seat in spec.seats if seat.group_id == group_id)
        return self._waiting.setdefault(group_id, _Waiting(missing=size))

    def _arrive(self, spec: GameSpec, failed: bool) -> None:
        for group_id in [seat.group_id for seat in spec.seats if seat.group_id is not None]:
            group = self._group(group_id, spec)
            group.missing -= spec.branches or 1
            group.failed |= failed
            if group.missing == 0:
                self._complete(group_id, self._waiting.pop(group_id))

    def _complete(self, group_id: int, group: _Waiting) -> None:
        samples = group.samples
        if group.failed:
            self.dropped_failed += len(samples)
        elif self._max_tied is not None and group.tied:
            self.dropped_tied += len(samples)
            self._tied_since_draw += len(samples)
            if self._tied_since_draw > self._max_tied:
                raise RuntimeError(
                    f"{self._tied_since_draw} samples were in groups whose trajectories all earned "
                    "the same, and less than a batch was not; set groups.drop_tied to false, or "
                    "groups.max_refills or groups.size higher"
                )
        elif samples:
            self._groups[group_id] = samples

    @property
    def size(self) -> int:
        """Samples in complete groups."""
        return sum(len(samples) for samples in self._groups.values())

    def ready(self, version: int) -> int:
        """Samples that could be trained on in an update of `version`."""
        fresh = (s for s in self._groups.values() if not self._is_stale(s, version))
        return sum(len(samples) for samples in fresh)

    def draw(self, version: int) -> Batch | None:
        """The oldest whole groups that reach the batch size, taken out; None if there are too few.

        Groups with a sample more than `max_staleness` versions behind `version` are dropped.
        """
        for group_id, samples in list(self._groups.items()):
            if self._is_stale(samples, version):
                self.dropped_stale += len(self._groups.pop(group_id))
        if self.size < self._batch_size:
            return None
        drawn: list[Sample] = []
        while len(drawn) < self._batch_size:
            oldest = next(iter(self._groups))
            drawn.extend(self._groups.pop(oldest))
        self._tied_since_draw = 0
        return Batch(version=version, samples=tuple(drawn))

    def stats(self) -> dict[str, float]:
        """What the tracker shows: samples held and, since the start, samples dropped."""
        return {
            "size": self.size,
            "waiting": sum(len(group.samples) for group in self._waiting.values()),
            "dropped_stale": self.dropped_stale,
            "dropped_capacity": self.dropped_capacity,
            "dropped_failed": self.dropped_failed,
            "dropped_tied": self.dropped_tied,
        }

    def _is_stale(self, samples: tuple[Sample, ...], version: int) -> bool:
        return version - min(sample.version for sample in samples) > self._max_staleness
