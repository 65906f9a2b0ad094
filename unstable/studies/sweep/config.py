"""A sweep as one value: runs that differ in some fields and in their seeds."""

import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from unstable.config.base import (
    MOST_RUNS,
    Arguments,
    Auto,
    ConfigError,
    Integer,
    PathText,
    PositiveInt,
    RunName,
    Section,
    shown,
)
from unstable.config.reading import paths_in, read_section, with_numbers

OWN = {
    "seed": "seeds are given by seeds",
    "tracking.run_dir": "the sweep has a folder for each run",
    "tracking.name": "runs are called by what they are given",
}
"""Fields that the sweep itself gives its runs."""
NAME = re.compile(r"[\w+][\w.+-]{0,59}")
"""What a setting may be called; with its seed it is a run's name."""
TRIES = 100
"""Draws for each that is wanted, as some may be alike."""
Values = Annotated[list[Any], Field(min_length=1)]


class RangeConfig(Section):
    """Numbers to draw from."""

    low: float = Field(description="the least")
    high: float = Field(description="the largest")
    log: bool = Field(False, description="evenly in the logarithm")
    whole: bool = Field(False, description="whole numbers")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high or (self.log and self.low <= 0):
            least = "above 0, and high above low" if self.log else "below high"
            raise ValueError(f"low = {self.low:g}, high = {self.high:g}: give a low {least}")
        return self

    def draw(self, chance: random.Random) -> float:
        """A number, of four digits so that it can be read and typed."""
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        value = chance.uniform(low, high)
        value = min(self.high, max(self.low, math.exp(value) if self.log else value))
        return round(value) if self.whole else float(f"{value:.4g}")


class RandomConfig(Section):
    """Settings that are drawn."""

    count: PositiveInt = Field(description="settings to draw")
    seed: Integer = Field(0, description="decides what is drawn")
    draw: Annotated[dict[str, RangeConfig | Values], Field(min_length=1)]
    """by field: a list to choose from, or a range"""

    def points(self) -> Iterator[dict[str, Any]]:
        """What each draw gives; another count or another field changes none of the others."""
        for number in itertools.count():
            drawn = {}
            for path, source in self.draw.items():
                chance = random.Random(f"{self.seed}/{number}/{path}")
                if isinstance(source, RangeConfig):
                    drawn[path] = source.draw(chance)
                else:
                    drawn[path] = chance.choice(source)
            yield drawn


class StopConfig(Section):
    """Successive halving: at each rung only the best settings go on."""

    rungs: Annotated[list[PositiveInt], Field(min_length=1)]
    """where settings are compared, ascending"""
    by: Literal["updates", "games"] = Field("updates", description="what rungs count, of a run")
    keep: PositiveInt | Annotated[float, Field(gt=0, lt=1)] = 0.5
    """settings that go on from a rung: how many, or which share"""
    needs: PositiveInt | None = None
    """seeds of which a setting needs a value to be compared; default: above half"""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if sorted(set(self.rungs)) != self.rungs:
            raise ValueError(f"rungs = {self.rungs}: give them in ascending order, each once")
        return self


class Setting(NamedTuple):
    """What runs are given, whatever their seed: Setting("kl_loss-0", "tiny_kuhn", {...})"""

    name: str
    config: str
    fields: dict[str, Any]
    league: dict[str, Any] | None = None  # what its file says besides, where it is one


class SweepConfig(Section):
    """A sweep: settings, by one of grid, settings and random, each with every seed."""

    name: RunName | None = Field(None, description="of its folder; default: that of its file")
    config: PathText = Field("default", description="what all runs begin with: a name or a file")
    common: Arguments = Field({}, description="fields of all runs, by dotted path")
    grid: Annotated[dict[str, Values], Field(min_length=1)] | None = None
    """values of each field; every combination is a setting"""
    settings: Annotated[list[Arguments], Field(min_length=1)] | None = None
    """the fields of each setting, its name, and league, where it is one"""
    random: RandomConfig | None = Field(None, description="settings that are drawn")
    seeds: Annotated[list[Integer], Field(min_length=1)] = [0]
    """each setting is run with each of them"""
    metric: str | None = None
    """what settings are compared by; default: the first that is evaluated"""
    goal: Literal["max", "min"] | None = None
    """whether more of it is better; default: not so of exploitability alone"""
    at_once: PositiveInt | Auto = 1
    """runs at a time; auto: as many as cores or cards allow"""
    stop: StopConfig | None = Field(None, description="stops what cannot win; default: nothing")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in ("grid", "settings", "random") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: give one of them")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {self.seeds}: one is there twice; leave it out")
        if self.stop is not None and (self.stop.needs or 0) > len(self.seeds):
            raise ValueError(
                f"stop.needs = {self.stop.needs}, but there are {len(self.seeds)} seeds; "
                "set it to at most that"
            )
        drawn = {} if self.random is None else self.random.draw
        for place, paths in (
            *(("common", self.common), ("grid", self.grid or {}), ("random.draw", drawn)),
            *((f"settings.{index}", each) for index, each in enumerate(self.settings or [])),
        ):
            for path in paths_in(paths):
                if path in OWN:
                    raise ValueError(f"{place}.{path}: {OWN[path]}; leave it out")
        settings = math.prod(map(len, (self.grid or {}).values())) * len(self.settings or [0])
        runs = settings * len(self.seeds) * (1 if self.random is None else self.random.count)
        if runs > MOST_RUNS:
            raise ValueError(f"{runs:,} runs; a sweep has at most {MOST_RUNS:,}: make it several")
        return self

    def all_settings(self) -> list[Setting]:
        """Every setting, the first of which others are compared with.

        Raises `ConfigError` for two of one name, and where fewer differ than shall be drawn.
        """
        points = [with_numbers(point) for point in self._points()]
        names = _names(points)
        if self.random is not None:
            names = [f"draw-{number}" for number in range(1, len(points) + 1)]
        found = []
        for name, point in zip(names, points, strict=True):
            fields = {**with_numbers(self.common), **point}
            own, base = str(fields.pop("name", name)), str(fields.pop("config", self.config))
            league = fields.pop("league", None)
            if not NAME.fullmatch(own):
                raise ConfigError(f"name = {shown(own)}: use letters, digits, . _ + -, at most 60")
            if league is not None and not isinstance(league, dict):
                raise ConfigError(
                    f"{own}: league = {shown(league)}: write a league's keys, such as members:"
                )
            found.append(Setting(own, base, fields, league))
        for name, count in Counter(each.name for each in found).items():
            if count > 1:
                raise ConfigError(
                    f"two settings are called {name!r}; leave one out, or give each a name of its "
                    "own in settings"
                )
        return found

    def _points(self) -> list[dict[str, Any]]:
        if self.grid is not None:
            values = itertools.product(*self.grid.values())
            return [dict(zip(self.grid, each, strict=True)) for each in values]
        if self.random is None:
            return self.settings or [{}]
        points: list[dict[str, Any]] = []
        for drawn in itertools.islice(self.random.points(), TRIES * self.random.count):
            points += [drawn] if drawn not in points else []
            if len(points) == self.random.count:
                return points
        raise ConfigError(
            f"random.count = {self.random.count}: only {len(points)} different settings were "
            "drawn; set it to that"
        )


def _names(points: Sequence[dict[str, Any]]) -> list[str]:
    """What each is called: the last parts of its fields' paths, or all of them, and the values."""
    paths = {path for point in points for path in point}
    ends = [path.rpartition(".")[2] for path in paths]
    names = []
    for number, point in enumerate(points, 1):
        own = [(path.rpartition(".")[2], path, _word(value)) for path, value in point.items()]
        parts = (f"{path if ends.count(end) > 1 else end}-{word}" for end, path, word in own)
        name = "+".join(parts) or "base"
        names.append(name if NAME.fullmatch(name) else f"setting-{number}")
    return names


def _word(value: Any) -> str:
    text = value.strip("-") if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.+-]+", "-", text) or "none"


def read_sweep(text: str, place: str) -> SweepConfig:
    """The sweep that a YAML text describes; raises `ConfigError`, which begins with `place`."""
    return read_section(SweepConfig, text, place, "grid")
