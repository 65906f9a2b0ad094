"""Gate of asynchronous play: lets a group of games begin once the buffer has room for it."""

import asyncio
from collections import deque

from unstable.buffers.buffer import Buffer

_LATE = 100
"""Number of recent groups in the running mean of samples per group."""


class Gate:
    """A gate that lets groups begin, in order of arrival, while their samples can be used.

    The gate is open while less than two batches are ready (more would only grow stale) and the
    ready samples plus the expected samples of groups in progress do not fill the buffer. By
    default, the buffer holds as much as is trained on before it is too stale, the bound of AReaL
    (https://arxiv.org/abs/2505.24298). The expected samples of a group are the running mean of
    recent groups, initially 1. A group in progress has its room reserved, so an opening gate lets
    in as many groups as fit, not all that wait. Each call takes constant time per admitted group.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._queue: deque[asyncio.Future[None]] = deque()
        self._playing = 0  # groups
        self._ended = 0
        self._mean = 1.0  # samples per group
        self.filled = asyncio.Event()
        """Event that is set while a batch is ready."""

    async def enter(self, version: int) -> None:
        """Wait until a group may begin, and reserve its room."""
        if not self._queue and self._has_room(self._buffer.ready(version)):
            self._playing += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self.look(version)
        await place

    def leave(self, version: int, *samples: int) -> None:
        """Record the end of groups, given the samples that each has added to the buffer."""
        for brought in samples:
            self._playing -= 1
            self._ended += 1
            self._mean += (brought - self._mean) / min(self._ended, _LATE)
        self.look(version)

    def _has_room(self, ready: int) -> bool:
        expected = ready + self._playing * self._mean
        return ready < 2 * self._buffer.batch_size and expected < self._buffer.capacity

    def look(self, version: int) -> None:
        """Let in the groups that fit, and update `filled`, for an update of `version`."""
        ready = self._buffer.ready(version)
        while self._queue and self._has_room(ready):
            place = self._queue.popleft()
            if not place.cancelled():
                place.set_result(None)
                self._playing += 1
        if ready >= self._buffer.batch_size:
            self.filled.set()
        else:
            self.filled.clear()
