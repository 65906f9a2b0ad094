"""A person's wish to end a run, which takes effect between updates."""

import asyncio
import contextlib
from collections.abc import Iterator


class Interrupt:
    """A person's wish to end the run: at once, or as soon as the step in progress is finished."""

    def __init__(self) -> None:
        self.deferred_by = ""
        """The step that is finished first, in words; empty if there is none."""
        self.wanted = False

    @contextlib.contextmanager
    def deferred(self, step: str) -> Iterator[None]:
        """Finish a step first; raises `CancelledError` at its end if the wish came meanwhile."""
        self.deferred_by = step
        try:
            yield
        finally:
            self.deferred_by = ""
        if self.wanted:
            raise asyncio.CancelledError
