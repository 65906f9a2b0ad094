"""Which recorded games a report shows, where there are more than a page can hold."""

from collections.abc import Sequence

from unstable.records.scan import Place

MOST_GAMES = 2000
"""Of a report, all runs together."""


def chosen(places: Sequence[Place], most: int = MOST_GAMES) -> list[Place]:
    """At most so many of a run's games, newest version first, its evaluation before its training.

    Half of them are evaluation games of the first and the last evaluated version, as far as there
    are so many; the rest is taken at even distances from all others.
    """
    picked = list(places) if len(places) <= most else _picked(places, most)
    return sorted(picked, key=lambda place: (-place.file.version, place.file.purpose))


def _picked(places: Sequence[Place], most: int) -> list[Place]:
    evaluated = sorted({p.file.version for p in places if p.file.purpose == "eval"})
    ends = {evaluated[0], evaluated[-1]} if evaluated else set()
    is_end = [p.file.purpose == "eval" and p.file.version in ends for p in places]
    first = spread([at for at, end in enumerate(is_end) if end], most // 2)
    others = [at for at, end in enumerate(is_end) if not end]
    return [places[at] for at in sorted([*first, *spread(others, most - len(first))])]


def spread(items: Sequence[int], most: int) -> list[int]:
    """At most so many, at even distances, the first and the last among them.

    >>> spread(range(9), 3)
    [0, 4, 8]
    """
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[:most])
    return [items[at * (len(items) - 1) // (most - 1)] for at in range(most)]


def rule(shown: int, total: int) -> str:
    """The rule in a sentence, for the page."""
    if shown == total:
        return f"All {total:,} recorded games."
    return (
        f"{shown:,} of {total:,} recorded games: evaluation games of the first and the last "
        "evaluated version, up to half of them; the rest at even distances over all versions."
    )
