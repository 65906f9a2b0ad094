"""Successive halving: which settings go on from a rung. Decisions are functions of values alone.

Jamieson and Talwalkar (2016, arXiv 1502.07943), with rungs and shares as Li et al. (2018, JMLR 18)
have them: all settings that are left come to a rung, and the best of them go on from it.
"""

import math
from collections.abc import Mapping, Sequence

from unstable.records.shapes import Record
from unstable.studies.sweep.config import StopConfig
from unstable.types.figures import Count, Figure
from unstable.types.intervals import mean


class RungDecision(Record, kw_only=True):
    """A line of `decisions.jsonl`: RungDecision(rung=25, values={"a": 0.9}, kept=("a",))"""

    rung: Count
    values: dict[str, Figure]  # of each setting that was compared, the best first
    kept: tuple[str, ...]  # settings that go on


def next_rung(stop: StopConfig | None, decisions: Sequence[RungDecision]) -> int | None:
    """The first rung of which nothing is decided yet; None where there is none."""
    left = [] if stop is None else stop.rungs[len(decisions) :]
    return left[0] if left else None


def going(settings: Sequence[str], decisions: Sequence[RungDecision]) -> list[str]:
    """The settings that have not been stopped."""
    return [name for name in settings if not decisions or name in decisions[-1].kept]


def decide(
    rung: int, stop: StopConfig, values: Mapping[str, Sequence[float]], seeds: int, sign: int
) -> RungDecision:
    """Which of the settings that are left go on from a rung.

    `values` are those of each one's seeds, `seeds` how many there should be, `sign` 1 where more is
    better, else -1. A setting with values of too few seeds goes out; of equal ones the first stays.
    """
    needs = stop.needs or seeds // 2 + 1
    means = {name: mean(own) for name, own in values.items() if len(own) >= needs}
    ranked = sorted(means, key=lambda name: -sign * means[name])
    share = stop.keep if isinstance(stop.keep, int) else math.ceil(stop.keep * len(values))
    found = {name: means[name] for name in ranked}
    return RungDecision(rung=rung, values=found, kept=tuple(ranked[:share]))
