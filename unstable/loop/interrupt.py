"""A person's wish to end a run, which takes effect between updates."""

import asyncio
import contextlib
from collections.abc import Iterator


class Interrupt:
    """A person's wish to end the run: at once, or as soon as the steps in progress are finished."""

    def __init__(self) -> None:
        self.wanted = False
        self._steps: list[str] = []

    @property
    def deferred_by(self) -> str:
        """The last of the steps that are finished first, in words; empty if there is none."""
        return self._steps[-1] if self._steps else ""

    @contextlib.contextmanager
    def deferred(self, step: str) -> Iterator[None]:
        """Finish a step first.

        At its end, unless another one is in progress, `CancelledError` is raised if the wish came
        meanwhile.
        """
        self._steps.append(step)
        try:
            yield
        finally:
            self._steps.remove(step)
        if self.wanted and not self._steps:
            raise asyncio.CancelledError
