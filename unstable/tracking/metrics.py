"""Metrics of engines, evaluations, exploitability and ratings; `play.py` has those of games.

Each name is explained in `docs/metrics.md`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields

from unstable.types import MAIN, EvalScore, Exploitability, LeastWon, PlayerId, Rating
from unstable.types.metrics import RatingKey, WorstKey
from unstable.types.tallies import Least

Row = dict[str, float | None]
Usage = Callable[[], Mapping[str, float]]
"""Function that returns the machine's utilization by metric name."""
_RATIOS = {
    "request_tokens": (("prompt_tokens", "sampled_tokens"), "requests"),
    "cached_share": (("cached_prompt_tokens",), "prompt_tokens"),
    "adapter_hit_share": (("adapter_hits",), "adapter_requests"),
    "tokens_per_step": (("sampled_tokens",), "decode_steps"),
}
"""Counters that are summed and the one they are divided by, for each ratio."""


class EngineMetrics:
    """Metrics `collect/engine/*`: increases of the engines' counters since the last `reset`."""

    def __init__(self) -> None:
        self._last: dict[int, Mapping[str, float]] = {}
        self._moved: dict[int, defaultdict[str, float]] = {}

    def add(self, actor: int, stats: Mapping[str, float]) -> None:
        """Add an actor's counters; a counter that fell belongs to a restarted actor."""
        before = self._last.get(actor, {})
        moved = self._moved.setdefault(actor, defaultdict(float))
        for name, value in stats.items():
            last = before.get(name, 0.0)
            moved[name] += value - last if value >= last else value
        self._last[actor] = dict(stats)

    def values(self, seconds: float, actor: int | None = None) -> Row:
        """Return `collect/engine/*` since the last `reset`, `seconds` ago, of one actor or of all.

        {} without an engine.
        """
        actors = [*self._last] if actor is None else [actor]
        if not actors:
            return {}
        moved: defaultdict[str, float] = defaultdict(float)
        for each in actors:
            for name, value in self._moved.get(each, {}).items():
                moved[name] += value
        levels = [self._last[each] for each in actors]
        row: Row = {f"collect/engine/{name}": moved[name] for name in ("requests", "prompt_tokens")}
        for name in ("prefill_seconds", "decode_seconds"):  # not reported by all engines
            known = any(name in stats for stats in levels)
            row[f"collect/engine/{name}"] = moved[name] if known else None
        for name, (counters, divisor) in _RATIOS.items():
            whole = moved[divisor]
            total = sum(moved[counter] for counter in counters)
            row[f"collect/engine/{name}"] = total / whole if whole else None
        row["collect/engine/tokens_per_second"] = moved["sampled_tokens"] / seconds
        for level in ("running", "waiting", "games_in_flight"):
            row[f"collect/engine/{level}"] = sum(stats.get(level, 0.0) for stats in levels)
        return row

    def reset(self) -> None:
        """Reset all increases to 0."""
        self._moved.clear()


def current_policy(ratings: Iterable[Rating]) -> PlayerId | None:
    """Return the newest version of the policy `MAIN` that has a rating; None if there is none."""
    players = [rating.player for rating in ratings]
    known = [(p.version, p) for p in players if p.version is not None and p.label == MAIN]
    return max(known)[1] if known else None


def evaluation_metrics(scores: Iterable[EvalScore]) -> Row:
    """Return `eval/<env>/<opponent>/<mode>/*`."""
    named = [field.name for field in fields(EvalScore)]
    figures = [name for name in named if name not in ("version", "env", "opponent")]
    return {score.key.name(name): getattr(score, name) for score in scores for name in figures}


def exploitability_metrics(found: Exploitability) -> Row:
    """Return `exploit/<env>/*`; names of figures by seat end in the seat's number."""
    row: Row = {}
    for field in fields(Exploitability):
        name, value = found.key.name(field.name), getattr(found, field.name)
        if isinstance(value, LeastWon):
            row |= {f"{name}_{part}": each for part, each in value._asdict().items()}
        elif isinstance(value, tuple):
            row |= {f"{name}/{seat}": each for seat, each in enumerate(value)}
        elif field.name not in ("version", "env", "past"):
            row[name] = value
    return row


def rating_metrics(ratings: Sequence[Rating]) -> Row:
    """Return `rating/<player>/*` of the newest version, as `policy`, and of unchanging players."""
    current = current_policy(ratings)
    row: Row = {}
    for rating in ratings:
        if rating.player == current or rating.player.version is None:
            key = RatingKey("policy" if rating.player == current else rating.player.name)
            row |= {key.name("mu"): rating.mu, key.name("sigma"): rating.sigma}
    return row


def worst_metrics(found: Mapping[str, Least]) -> Row:
    """Return `worst/<policy>/*`; `against` is the number of the opponent's version."""
    row: Row = {}
    for policy, least in found.items():
        name = WorstKey(policy).name
        row |= {name(end): value for end, value in zip(_ENDS, least.score, strict=True)}
        row[name("against")] = PlayerId.parse(least.opponent).version
        row |= {name(count): getattr(least, count) for count in ("games", "compared", "left_out")}
    return row


_ENDS = ("score", "low", "high")
