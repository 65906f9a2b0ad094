"""A person's wish to end a run, heeded between updates."""

import asyncio
import contextlib
from collections.abc import Iterator


class Interrupt:
    """A person's wish to end the run: heeded at once, or as soon as what has begun is finished."""

    def __init__(self) -> None:
        self.holding = ""
        """What is to be finished first, in words; nothing if it is empty."""
        self.wanted = False

    @contextlib.contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Raise `CancelledError` at the end if the wish has come meanwhile."""
        self.holding = what
        try:
            yield
        finally:
            self.holding = ""
        if self.wanted:
            raise asyncio.CancelledError
