"""Successive halving: selection of the settings that continue after a rung, by values alone.

Jamieson and Talwalkar (2016, arXiv 1502.07943), with rungs and shares as in Li et al. (2018, JMLR
18): all remaining settings reach a rung, and the best of them continue.
"""

import math
from collections.abc import Mapping, Sequence

from unstable.records.shapes import Record
from unstable.studies.sweep.config import StopConfig
from unstable.types.figures import Count, Figure
from unstable.types.intervals import mean


class RungDecision(Record, kw_only=True):
    """A row of `decisions.jsonl`: RungDecision(rung=25, values={"a": 0.9}, kept=("a",))"""

    rung: Count
    values: dict[str, Figure]  # means of the compared settings, best first
    kept: tuple[str, ...]  # settings that continue


def next_rung(stop: StopConfig | None, decisions: Sequence[RungDecision]) -> int | None:
    """Return the first rung without a decision; None if no rung is left."""
    left = [] if stop is None else stop.rungs[len(decisions) :]
    return left[0] if left else None


def going(settings: Sequence[str], decisions: Sequence[RungDecision]) -> list[str]:
    """Return the settings that have not been stopped."""
    return [name for name in settings if not decisions or name in decisions[-1].kept]


def decide(
    rung: int, stop: StopConfig, values: Mapping[str, Sequence[float]], seeds: int, sign: int
) -> RungDecision:
    """Decide which of the remaining settings continue after a rung.

    `values` are each setting's values over seeds, `seeds` the full number of seeds, `sign` 1 if
    more is better, else -1. A setting with values of too few seeds stops; of equal ones the first
    stays.
    """
    needs = stop.needs or seeds // 2 + 1
    means = {name: mean(own) for name, own in values.items() if len(own) >= needs}
    ranked = sorted(means, key=lambda name: -sign * means[name])
    share = stop.keep
    if isinstance(share, float):
        share = math.ceil(round(share * len(values), 9))  # 0.28 of 25 is 7
    found = {name: means[name] for name in ranked}
    return RungDecision(rung=rung, values=found, kept=tuple(ranked[:share]))
