"""The registry of metrics, and names that depend on the run, which are made and parsed here alone.

`metrics.txt` declares each metric in a line, and docs/metrics.md is made of it. Slashes separate
the parts of a name. What the run brings (an env, an opponent) is one part: its own slashes become
colons.
"""

import re
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple, Self


class Metric(NamedTuple):
    """A declared metric; `<...>` stands for one part of its name, which the run brings."""

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
    """The declaration of a name; None for a name that is not declared, as a user's own.

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
    """The unit of a metric, "" for none.

    >>> unit("learn/entropy"), unit("learn/loss")
    ('nats', '')
    """
    declared = metric(name)
    return "" if declared is None or declared.unit == "–" else declared.unit


def part(name: str) -> str:
    """A name as one part of a metric's name.

    >>> part("openai:some/model")
    'openai:some:model'
    """
    return name.replace("/", ":")


@lru_cache(maxsize=4096)
def metric_name(prefix: str, *parts: str | int) -> str:
    """The prefix as it is, then what the run brings.

    >>> metric_name("collect/outcome", "some/env", 1)
    'collect/outcome/some:env/1'
    """
    return "/".join((prefix, *(part(str(each)) for each in parts)))


def sampling_mode(temperature: float) -> str:
    """Return how answers are sampled, in a word.

    >>> sampling_mode(0.0), sampling_mode(0.5), sampling_mode(1.0)
    ('greedy', 't0.5', 'sampled')
    """
    if temperature == 1:
        return "sampled"
    return f"t{temperature:g}" if temperature else "greedy"


@dataclass(frozen=True, slots=True)
class MetricKey:
    """Key of figures whose names begin alike. A class for each kind of it."""

    prefix: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, part(getattr(self, field.name)))

    def name(self, figure: str) -> str:
        """The metric's whole name.

        >>> EvalKey("Nim-v0", "random", "greedy").name("score")
        'eval/Nim-v0/random/greedy/score'
        """
        return "/".join((self.prefix, *(getattr(self, each.name) for each in fields(self)), figure))

    @classmethod
    def parse(cls, name: str) -> tuple[Self, str] | None:
        """The key and the figure of a whole name; None for a name of something else."""
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
    """Exploitability in one env; figures by seat end in the seat's number."""

    prefix = "exploit"
    env: str


@dataclass(frozen=True, slots=True)
class RatingKey(MetricKey):
    """A player's rating; "policy" is the newest version."""

    prefix = "rating"
    player: str


@dataclass(frozen=True, slots=True)
class WorstKey(MetricKey):
    """The least score of a policy's newest versions against any before them: WorstKey("main")"""

    prefix = "worst"
    policy: str


SUMS = ("others", "fixed")
"""Kinds of opponents whose games count under another one too."""


@dataclass(frozen=True, slots=True)
class VersusKey(MetricKey):
    """Training games against an opponent, or a kind of opponents: VersusKey("self")"""

    prefix = "collect/versus"
    opponent: str


@lru_cache(maxsize=4096)
def versus_name(opponent: str, figure: str) -> str:
    """`VersusKey(opponent).name(figure)`, which every game asks for.

    >>> versus_name("self", "games")
    'collect/versus/self/games'
    """
    return VersusKey(opponent).name(figure)
