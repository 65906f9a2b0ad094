"""A person's wish to end a run, which takes effect between updates."""

import asyncio
import contextlib
from collections.abc import Iterator


class Interrupt:
    """A person's wish to end the run: at once, or as soon as the updates in progress are over."""

    def __init__(self) -> None:
        self.wanted = False
        self._updates: list[int] = []

    @property
    def deferred_by(self) -> str:
        """The last of the updates that are finished first, in words; empty if there is none."""
        return f"update {max(self._updates)}" if self._updates else ""

    @contextlib.contextmanager
    def deferred(self, update: int) -> Iterator[None]:
        """Finish what makes or publishes an update first, given by the version that it makes.

        At its end, unless another one is in progress, `CancelledError` is raised if the wish came
        meanwhile.
        """
        self._updates.append(update)
        try:
            yield
        finally:
            self._updates.remove(update)
        if self.wanted and not self._updates:
            raise asyncio.CancelledError
