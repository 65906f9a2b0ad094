"""Registry of metrics; also makes and parses all metric names that depend on the run.

`metrics.txt` declares one metric per line, and docs/metrics.md is generated from it. Slashes
separate the parts of a name. A value from the run (an env, an opponent) is one part: its own
slashes become colons.
"""

import re
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple, Self


class Metric(NamedTuple):
    """A declared metric; `<...>` in its name is a placeholder for one part, a value of the run."""

    name: str
    unit: str
    meaning: str


_LINES = Path(__file__).with_name("metrics.txt").read_text("utf-8").splitlines()[1:]
METRICS = tuple(Metric(*line.split(" | ", 2)) for line in _LINES if line)
"""All metrics that unstable logs, in the order of their groups."""
GROUPS = tuple(dict.fromkeys(each.name.split("/")[0] for each in METRICS if "/" in each.name))
"""First parts of all metrics' names."""


@lru_cache(maxsize=4096)
def metric(name: str) -> Metric | None:
    """Return the declaration of a name; None for an undeclared name, such as a user's own.

    >>> metric("learn/entropy/env/0").name, metric("learn/baseline/env/0").name
    ('learn/entropy', 'learn/baseline/<env>/<seat>')
    >>> metric("learn/mine"), metric("learn/mine/env/0")
    (None, None)
    """
    matching = [each for each in METRICS if _pattern(each.name).fullmatch(name)]
    found = min(matching, key=lambda each: each.name.count("<"), default=None)
    return metric(name.rsplit("/", 2)[0]) if found and "<name>" in found.name else found


@cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub("<[a-z]+>", "[^/]+", name))


def unit(name: str) -> str:
    """Return the unit of a metric; "" if it has none or is not declared.

    >>> unit("learn/entropy"), unit("learn/loss")
    ('nats', '')
    """
    declared = metric(name)
    return "" if declared is None or declared.unit == "–" else declared.unit


def part(name: str) -> str:
    """Return a name as one part of a metric's name.

    >>> part("openai:some/model")
    'openai:some:model'
    """
    return name.replace("/", ":")


@lru_cache(maxsize=4096)
def metric_name(prefix: str, *parts: str | int) -> str:
    """Return the name of a metric from a prefix and parts that are values of the run.

    >>> metric_name("collect/outcome", "some/env", 1)
    'collect/outcome/some:env/1'
    """
    return "/".join((prefix, *(part(str(each)) for each in parts)))


def sampling_mode(temperature: float) -> str:
    """Return the sampling mode of a temperature as a word.

    >>> sampling_mode(0.0), sampling_mode(0.5), sampling_mode(1.0)
    ('greedy', 't0.5', 'sampled')
    """
    if temperature == 1:
        return "sampled"
    return f"t{temperature:g}" if temperature else "greedy"


@dataclass(frozen=True, slots=True)
class MetricKey:
    """Base of keys: a key identifies metrics that share all but the last part of their names."""

    prefix: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, part(getattr(self, field.name)))

    def name(self, figure: str) -> str:
        """Return the whole name of a metric.

        >>> EvalKey("Nim-v0", "random", "greedy").name("score")
        'eval/Nim-v0/random/greedy/score'
        """
        return "/".join((self.prefix, *(getattr(self, each.name) for each in fields(self)), figure))

    @classmethod
    def parse(cls, name: str) -> tuple[Self, str] | None:
        """Return the key and the figure of a whole name; None if the name has another form."""
        if not name.startswith(f"{cls.prefix}/"):
            return None
        parts = name.removeprefix(f"{cls.prefix}/").split("/", len(fields(cls)))
        if len(parts) <= len(fields(cls)):
            return None
        return cls(*parts[:-1]), parts[-1]


@dataclass(frozen=True, slots=True)
class EvalKey(MetricKey):
    """An evaluation in one env against one opponent: EvalKey("Nim-v0", "random", "greedy")"""

    prefix = "eval"
    env: str
    opponent: str
    mode: str  # `sampling_mode` of the version's temperature


@dataclass(frozen=True, slots=True)
class ExploitKey(MetricKey):
    """Exploitability in one env; the names of figures by seat end in the seat's number."""

    prefix = "exploit"
    env: str


@dataclass(frozen=True, slots=True)
class RatingKey(MetricKey):
    """A player's rating; "policy" is the newest version."""

    prefix = "rating"
    player: str


@dataclass(frozen=True, slots=True)
class WorstKey(MetricKey):
    """The lowest score of a policy's newest versions against any past one: WorstKey("main")"""

    prefix = "worst"
    policy: str


SUMS = ("others", "fixed")
"""Kinds of opponents whose games also count under another kind."""


@dataclass(frozen=True, slots=True)
class VersusKey(MetricKey):
    """Training games against an opponent or a kind of opponents: VersusKey("self")"""

    prefix = "collect/versus"
    opponent: str


@lru_cache(maxsize=4096)
def versus_name(opponent: str, figure: str) -> str:
    """Return `VersusKey(opponent).name(figure)`, cached since every game needs it.

    >>> versus_name("self", "games")
    'collect/versus/self/games'
    """
    return VersusKey(opponent).name(figure)
