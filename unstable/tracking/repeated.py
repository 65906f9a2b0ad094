"""Work that a thread does again and again beside the run."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 10.0
"""For work that is under way at the end; what hangs then does not hold the end up."""


@contextmanager
def repeated(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """Meanwhile `work` is called every so many seconds, also while the caller is blocked."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)
