"""What updates took, beside what the plan had estimated, and which cards would balance the two."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unstable.config import RunConfig
from unstable.planning.pace import Pace

FEWEST, MOST = 4, 16
"""Updates that are looked at, the newest ones: with fewer there is no advice."""
WAITS = 0.05
"""Share of an update's time; a learner that waits less for games has more of them than it needs."""
WORTH = 0.9
"""Other numbers are named where an update would take at most this share of its time."""

Row = Mapping[str, float | bool | None]


class Measured(NamedTuple):
    """Mean seconds of an update."""

    play_s: float | None  # None: no more than `update_s`, as games were always there
    learn_s: float
    update_s: float  # by turns both, at once the longer one


class Cards(NamedTuple):
    """How many actors and learner ranks there are."""

    actors: int
    ranks: int


def measured(rows: Sequence[Row], *, sync: bool) -> Measured | None:
    """What the newest rows of metrics.jsonl come to; None where they are too few."""
    recent = rows[-MOST:]
    if len(recent) < FEWEST:
        return None
    waited, learn = (
        sum(float(row.get(f"time/{name}") or 0.0) for row in recent for name in names) / len(recent)
        for names in (("play",), ("update", "publish"))
    )
    whole = waited + learn
    if sync:
        return Measured(waited, learn, whole)
    return Measured(whole if waited > WAITS * whole else None, learn, whole)


def balanced(config: RunConfig, found: Measured, play_s: float) -> tuple[Cards, float] | None:
    """The numbers of cards with which an update takes least time, and its seconds then.

    Play and learning take as many times longer as they have fewer. None where the numbers that are
    stand, or where actors and learner share cards. `config` is resolved.
    """
    actors, num, ranks = config.actors, config.actors.num, config.learner.num
    assert isinstance(num, int) and isinstance(ranks, int), "resolved"
    if actors.share_gpu != "off":
        return None
    per_card = actors.engines_per_gpu if isinstance(actors.engines_per_gpu, int) else 1
    cards = -(-num * actors.tensor_parallel // per_card) + ranks

    def update_s(number: int) -> float:
        play = play_s * num / num_actors(number)
        learn = found.learn_s * ranks / number
        return play + learn if config.loop.mode == "sync" else max(play, learn)

    def num_actors(number: int) -> int:
        return (cards - number) * per_card // actors.tensor_parallel

    numbers = [number for number in range(1, cards) if num_actors(number)]
    best = min(numbers, key=update_s, default=ranks)
    if update_s(best) > WORTH * update_s(ranks):
        return None
    return Cards(num_actors(best), best), update_s(best)


def pace_line(config: RunConfig, planned: Pace | None, rows: Sequence[Row]) -> str | None:
    """Measured and planned pace in words, and the numbers that would balance it; None: too early.

    Without a plan of the pace, as where nothing is on cards, there is no advice on numbers. `rows`
    are those since the run's start but for its first update, which is slower.
    """
    found = measured(rows, sync=config.loop.mode == "sync")
    if found is None:
        return None
    play = "less" if found.play_s is None else f"{found.play_s:.1f} s"
    line = f"learning takes {found.learn_s:.1f} s an update, playing {play}"
    if planned is None:
        return line
    line += f" (planned: {planned.learn_s:.1f} and {planned.play_s:.1f} s)"
    play_s = min(planned.play_s, found.update_s) if found.play_s is None else found.play_s
    better = balanced(config, found, play_s)
    if better is None:
        return line
    (actors, ranks), seconds = better
    return (
        f"{line}; learner.num {ranks} and actors.num {actors} would bring an update from "
        f"{found.update_s:.1f} to about {seconds:.1f} s"
    )
