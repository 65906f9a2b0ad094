"""Which of the oldest items are left out where all together are too long, such as a game's events.

Half of the room is cleared at once: then the next prompts of a game, which begin with the same
items, find their beginning in an engine's prefix cache until there is no room again. What is left
out follows from the items alone, so that a prompt can be made again.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate


def cut_points(sizes: Sequence[int], step: int) -> list[int]:
    """How many of the oldest items can be left out: as many as have no step, one, two, ..., or all.

    As items are added, the points before the last one stay.

    >>> cut_points([4, 4, 4, 4, 4, 4], step=8)
    [0, 2, 4, 6]
    """
    ends = [0, *accumulate(sizes)]
    points = [
        place
        for place, (end, following) in enumerate(zip(ends, ends[1:], strict=False))
        if -(-end // step) * step < following  # a multiple of the step ends here, or in the next
    ]
    return [*points, len(sizes)]


def left_out(sizes: Sequence[int], room: int, fits: Callable[[int], bool]) -> int:
    """How many of the oldest items are left out, in steps of half `room`: all are too long.

    `fits` says whether the others then fit. Where they do only without all of them, by the steps,
    as few are left out as have to be.
    """
    points = cut_points(sizes, max(1, room // 2))
    place = bisect_left(points, True, key=fits)
    if place < len(points) - 1:
        return points[place]
    first = points[-2] if len(points) > 1 else 0
    return first + bisect_left(range(first, len(sizes)), True, key=fits)
