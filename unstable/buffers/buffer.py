"""The buffer: bounded, aware of versions, and never splits a group."""

from unstable.types import Batch, GameSpec, Sample, Trajectory


class Buffer:
    """Whole groups in the order in which they were completed.

    The oldest leave as long as `capacity` samples remain without them, so that at most one group's
    samples are held beyond it.
    A group that is still missing members waits outside the order. `max_staleness` is enforced at
    the moment of use: what is too old when a batch is drawn is dropped, and counted.
    """

    def __init__(self, capacity: int, batch_size: int, max_staleness: int) -> None:
        self._capacity = capacity
        self._batch_size = batch_size
        self._max_staleness = max_staleness
        self._waiting: dict[int, list[Trajectory]] = {}
        self._groups: dict[int, tuple[Sample, ...]] = {}
        self.dropped_stale = 0
        self.dropped_capacity = 0

    def add(self, spec: GameSpec, trajectories: list[Trajectory]) -> None:
        """Take a finished game's trajectories; the oldest groups leave when there is no room."""
        for trajectory in trajectories:
            members = self._waiting.setdefault(trajectory.group_id, [])
            members.append(trajectory)
            if len(members) == spec.seats[trajectory.samples[0].seat].group_size:
                del self._waiting[trajectory.group_id]
                samples = tuple(sample for member in members for sample in member.samples)
                self._groups[trajectory.group_id] = samples
        size = self.size
        for group_id, samples in list(self._groups.items()):
            if size - len(samples) < self._capacity:
                break
            size -= len(samples)
            self.dropped_capacity += len(self._groups.pop(group_id))

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
        return Batch(version=version, samples=tuple(drawn))

    def stats(self) -> dict[str, float]:
        """What the tracker shows: samples held and, since the start, samples dropped."""
        return {
            "size": self.size,
            "waiting": sum(len(t.samples) for group in self._waiting.values() for t in group),
            "dropped_stale": self.dropped_stale,
            "dropped_capacity": self.dropped_capacity,
        }

    def _is_stale(self, samples: tuple[Sample, ...], version: int) -> bool:
        return version - min(sample.version for sample in samples) > self._max_staleness
