"""Selection of the oldest items to omit, such as a game's events, when all together are too long.

Half of the room is cleared at once: the next prompts of a game then share their first items, and
hit an engine's prefix cache, until the room is full again. The selection depends only on the
items, so that a prompt can be rebuilt.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate


def cut_points(sizes: Sequence[int], step: int) -> list[int]:
    """Return the counts of oldest items to choose from: 0, one per multiple of `step`, and all.

    When items are added, the points before the last one do not change.

    >>> cut_points([4, 4, 4, 4, 4, 4], step=8)
    [0, 2, 4, 6]
    """
    ends = [0, *accumulate(sizes)]
    points = [
        place
        for place, (end, following) in enumerate(zip(ends, ends[1:], strict=False))
        if -(-end // step) * step < following  # a multiple of the step is in [end, following)
    ]
    return [*points, len(sizes)]


def left_out(sizes: Sequence[int], room: int, fits: Callable[[int], bool]) -> int:
    """Return how many of the oldest items to omit, in steps of half `room`; all would be too long.

    `fits` returns whether the remaining items fit if that many are omitted. If the steps would omit
    all items, the count is the smallest one that fits.
    """
    points = cut_points(sizes, max(1, room // 2))
    place = bisect_left(points, True, key=fits)
    if place < len(points) - 1:
        return points[place]
    first = points[-2] if len(points) > 1 else 0
    return first + bisect_left(range(first, len(sizes)), True, key=fits)
