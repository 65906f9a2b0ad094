"""Config of a sweep: runs that differ in some fields and in their seeds."""

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
    "seed": "set by seeds",
    "tracking.run_dir": "the sweep sets a folder for each run",
    "tracking.name": "runs are named by their settings",
}
"""Fields that the sweep sets for its runs, and the reason for each."""
NAME = re.compile(r"[\w+][\w.+-]{0,59}")
"""Valid names of a setting, which with the seed are names of runs."""
TRIES = 100
"""Draws per wanted setting, since some may be equal."""
Values = Annotated[list[Any], Field(min_length=1)]


class RangeConfig(Section):
    """Range of numbers to draw from."""

    low: float = Field(description="lower bound")
    high: float = Field(description="upper bound")
    log: bool = Field(False, description="uniform in the logarithm")
    whole: bool = Field(False, description="round to whole numbers")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high or (self.log and self.low <= 0):
            need = "0 < low < high" if self.log else "low < high"
            raise ValueError(f"low = {self.low:g}, high = {self.high:g}: set {need}")
        return self

    def draw(self, chance: random.Random) -> float:
        """Draw a number, with four significant digits so that it is easy to read and type."""
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        value = chance.uniform(low, high)
        value = min(self.high, max(self.low, math.exp(value) if self.log else value))
        return round(value) if self.whole else float(f"{value:.4g}")


class RandomConfig(Section):
    """Settings drawn at random."""

    count: PositiveInt = Field(description="number of settings to draw")
    seed: Integer = Field(0, description="seed of the draws")
    draw: Annotated[dict[str, RangeConfig | Values], Field(min_length=1)]
    """source by field: a list of values, or a range"""

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield each draw's fields; a field's draws depend on neither count nor other fields."""
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
    """Successive halving: at each rung only the best settings continue."""

    rungs: Annotated[list[PositiveInt], Field(min_length=1)]
    """points at which settings are compared, ascending"""
    by: Literal["updates", "games"] = Field("updates", description="unit of rungs, per run")
    keep: PositiveInt | Annotated[float, Field(gt=0, lt=1)] = 0.5
    """settings that continue after a rung: a count or a share"""
    needs: PositiveInt | None = None
    """seeds with a value that a setting needs to be compared; default: more than half"""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if sorted(set(self.rungs)) != self.rungs:
            raise ValueError(f"rungs = {self.rungs}: not strictly ascending; sort and deduplicate")
        return self


class Setting(NamedTuple):
    """Fields that runs of all seeds share: Setting("kl_loss-0", "tiny_kuhn", {...})"""

    name: str
    config: str
    fields: dict[str, Any]
    league: dict[str, Any] | None = None  # a league's other keys; None: no league


class SweepConfig(Section):
    """A sweep: settings from one of grid, settings and random, each run with every seed."""

    name: RunName | None = Field(None, description="name of the folder; default: the file's name")
    config: PathText = Field("default", description="base config of all runs: a name or a file")
    common: Arguments = Field({}, description="fields of all runs, by dotted path")
    grid: Annotated[dict[str, Values], Field(min_length=1)] | None = None
    """values by field; every combination is a setting"""
    settings: Annotated[list[Arguments], Field(min_length=1)] | None = None
    """fields of each setting, with optional name, config and league"""
    random: RandomConfig | None = Field(None, description="settings drawn at random")
    seeds: Annotated[list[Integer], Field(min_length=1)] = [0]
    """seeds of the runs of each setting"""
    metric: str | None = None
    """metric that compares settings; default: the first evaluated one"""
    goal: Literal["max", "min"] | None = None
    """better direction of the metric; default: min for exploitability, else max"""
    at_once: PositiveInt | Auto = 1
    """concurrent runs; auto: as many as cores or GPUs allow"""
    stop: StopConfig | None = Field(None, description="early stopping of settings; default: none")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in ("grid", "settings", "random") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: mutually exclusive; keep one of them")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {self.seeds}: duplicate seed; remove it")
        if self.stop is not None and (self.stop.needs or 0) > len(self.seeds):
            raise ValueError(
                f"stop.needs = {self.stop.needs}: only {len(self.seeds)} seeds; "
                f"set it to at most {len(self.seeds)}"
            )
        drawn = {} if self.random is None else self.random.draw
        for place, paths in (
            *(("common", self.common), ("grid", self.grid or {}), ("random.draw", drawn)),
            *((f"settings.{index}", each) for index, each in enumerate(self.settings or [])),
        ):
            for path in paths_in(paths):
                if path in OWN:
                    raise ValueError(f"{place}.{path}: {OWN[path]}; remove it")
        settings = math.prod(map(len, (self.grid or {}).values())) * len(self.settings or [0])
        runs = settings * len(self.seeds) * (1 if self.random is None else self.random.count)
        if runs > MOST_RUNS:
            raise ValueError(f"{runs:,} runs exceed the limit of {MOST_RUNS:,}; split the sweep")
        return self

    def all_settings(self) -> list[Setting]:
        """Return all settings; the first is the baseline of comparisons.

        Raises `ConfigError` for duplicate names, and if draws yield too few distinct settings.
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
                raise ConfigError(f"name = {shown(own)}: use at most 60 letters, digits, . _ + -")
            if league is not None and not isinstance(league, dict):
                raise ConfigError(
                    f"{own}: league = {shown(league)}: not a mapping; use keys such as members:"
                )
            found.append(Setting(own, base, fields, league))
        for name, count in Counter(each.name for each in found).items():
            if count > 1:
                raise ConfigError(
                    f"duplicate setting name {name!r}; remove one, or set unique names in settings"
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
            f"random.count = {self.random.count}: only {len(points)} distinct settings were "
            f"drawn; set it to {len(points)}"
        )


def _names(points: Sequence[dict[str, Any]]) -> list[str]:
    """Return the points' names: values with fields' last parts, or whole paths if ambiguous."""
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
    """Parse a sweep from YAML text; a `ConfigError`'s message begins with `place`."""
    return read_section(SweepConfig, text, place, "grid")
