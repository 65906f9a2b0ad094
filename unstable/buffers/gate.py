"""The gate of asynchronous play: a group of games begins once the buffer has room for it."""

import asyncio
from collections import deque

from unstable.buffers.buffer import Buffer

_LATE = 100
"""Groups over which the mean of their samples runs."""


class Gate:
    """Lets groups begin, first come first served, while what they will bring can be used.

    That is while less than two batches lie ready, which would only grow stale, and what is ready
    and what is to expect of the groups that play do not fill the buffer. By default the buffer
    holds as much as is trained on before it is too stale; the same bound as in AReaL
    (https://arxiv.org/abs/2505.24298). A group is expected to bring the mean of those of late, and
    a sample before there was any. One that plays has its room reserved, so that a gate that opens
    lets in as many as fit, not all that wait. Each call takes constant time for each group let in.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._queue: deque[asyncio.Future[None]] = deque()
        self._playing = 0  # groups
        self._ended = 0
        self._mean = 1.0  # samples that a group brings
        self.filled = asyncio.Event()
        """Set while a batch lies ready."""

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
        """Groups have ended, and what each of them brought is in the buffer."""
        for brought in samples:
            self._playing -= 1
            self._ended += 1
            self._mean += (brought - self._mean) / min(self._ended, _LATE)
        self.look(version)

    def _has_room(self, ready: int) -> bool:
        expected = ready + self._playing * self._mean
        return ready < 2 * self._buffer.batch_size and expected < self._buffer.capacity

    def look(self, version: int) -> None:
        """Let in what fits, and see whether a batch is there, for an update of `version`."""
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
