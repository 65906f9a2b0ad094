"""Making the next thing while the one before it is used."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def made_ahead(
    items: Sequence[Item], make: Callable[[Item], Made], *, threaded: bool
) -> Generator[tuple[Item, Made]]:
    """Each item with what is made of it; with `threaded` made while the one before is used.

    Who stops early, by an error too, drops what was made ahead; the thread ends with the iterator.
    """
    if not threaded:
        yield from ((item, make(item)) for item in items)
        return
    with ThreadPoolExecutor(1, "ahead") as thread:
        coming = deque(thread.submit(make, item) for item in items[:1])
        for place, item in enumerate(items, start=1):
            made = coming.popleft().result()
            coming += [thread.submit(make, following) for following in items[place : place + 1]]
            yield item, made
