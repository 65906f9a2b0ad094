"""Config of a league: members that train in turn against each other's frozen versions."""

import itertools
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from unstable.config.base import (
    MOST_RUNS,
    Arguments,
    Auto,
    Integer,
    PathText,
    PositiveInt,
    RunName,
    Section,
    nearest,
)
from unstable.config.opponents import DrawConfig
from unstable.config.reading import paths_in, read_section, with_numbers

OWN = {
    "seed": "derived from the league's seed",
    "loop.steps": "set by the league's updates",
    "opponents.draw": "set by the member's draw",
    "opponents.fixed": "the league's members are the opponents",
    "learner.state": "a member resumes from its own previous generation",
    "learner.updates_before": "set from the member's generations",
    "learner.updates_after": "set from the member's generations",
    "tracking.run_dir": "the league sets a folder for each run",
    "tracking.name": "runs are named by member and generation",
}
"""Fields that the league sets for its runs, and the reason for each."""
NAME = re.compile(r"[A-Za-z][\w.+-]{0,39}")
Role = Literal["main", "exploiter", "league_exploiter"]
DRAWS: dict[Role, DrawConfig] = {
    "main": DrawConfig(self=0.35, past=0.0, fixed=0.65),
    "exploiter": DrawConfig(self=0.0, past=0.0, fixed=1.0),
    "league_exploiter": DrawConfig(self=0.0, past=0.0, fixed=1.0),
}
RESTARTS: dict[Role, Literal["never", "each", "won"]] = {
    "main": "never",
    "exploiter": "each",
    "league_exploiter": "won",
}


class MeetConfig(Section):
    """Weights of frozen versions as opponents."""

    rule: Literal["uniform", "pfsp"] = "pfsp"
    """uniform: equal weights; pfsp: weights by the score against each version so far"""
    form: Literal["hard", "even"] = "hard"
    """pfsp weight for a score p: hard (1 - p)^exponent, even (p (1 - p))^exponent"""
    exponent: PositiveFloat = Field(2.0, description="exponent of pfsp")
    prior: PositiveFloat = 4.0
    """number of draws added to each score; more make weights closer to uniform"""
    newest: PositiveInt | None = None
    """newest frozen versions of each member that serve as opponents; default: all"""


class MemberConfig(Section):
    """A policy that trains in the league."""

    role: Role = "main"
    """main: meets itself and all frozen; exploiter: newest of some; league_exploiter: all frozen"""
    against: Annotated[list[str], Field(min_length=1)] | None = None
    """members that an exploiter meets; default: all with role main"""
    restart: Literal["never", "each", "won"] | None = None
    """when training restarts; default: main never, exploiter each, league_exploiter won"""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.7
    """a member has won if its score in its last generation is at least this"""
    draw: DrawConfig | None = None
    """shares of games against itself (self), its run's past and frozen versions (fixed)"""
    fields: Arguments = Field({}, description="fields of its runs, by dotted path")

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.role != "exploiter":
            self.refuse("against", f"applies to exploiters, not to role {self.role}; remove it")
        if self.restart is not None and self.role == "main" and self.restart != "never":
            raise ValueError(f"restart = {self.restart!r}: a main never restarts; remove it")
        if self.draw is not None and self.draw.self + self.draw.past + self.draw.fixed <= 0:
            raise ValueError("draw = all zero; set self, past or fixed above 0")
        return self

    @property
    def shares(self) -> DrawConfig:
        """Shares of games against itself, its run's past and frozen versions."""
        return self.draw or DRAWS[self.role]

    @property
    def restarts(self) -> Literal["never", "each", "won"]:
        """Rule of the generations that begin from the start."""
        return self.restart or RESTARTS[self.role]


class LeagueConfig(Section):
    """A league: its members, how long they train, and how they meet."""

    name: RunName | None = Field(None, description="name of the folder; default: the file's name")
    config: PathText = Field("default", description="base config of all runs: a name or a file")
    common: Arguments = Field({}, description="fields of all runs, by dotted path")
    members: Annotated[dict[str, MemberConfig], Field(min_length=1)]
    """members by name, in training order"""
    generations: PositiveInt = Field(description="generations; each ends with frozen versions")
    updates: PositiveInt = Field(description="updates of a member in a generation")
    meet: MeetConfig = MeetConfig()
    turns: Literal["alternate", "together"] = "alternate"
    """alternate: one by one, meeting this generation's versions too; together: side by side"""
    at_once: PositiveInt | Auto = 1
    """concurrent runs of members that train together; auto: as many as fit"""
    seed: Integer = Field(0, description="seed from which all runs' seeds derive")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in self.members:
            self._check_member(name)
        for place, fields in (
            ("common", self.common),
            *((f"members.{name}.fields", each.fields) for name, each in self.members.items()),
        ):
            for path, (own, why) in itertools.product(paths_in(fields), OWN.items()):
                if path == own or path.startswith(f"{own}."):
                    raise ValueError(f"{place}.{path}: {why}; leave it out")
        if (runs := self.generations * len(self.members)) > MOST_RUNS:
            raise ValueError(
                f"generations = {self.generations}: {runs:,} runs exceed the limit of "
                f"{MOST_RUNS:,}; lower generations"
            )
        if not any(each.shares.self + each.shares.past > 0 for each in self.members.values()):
            raise ValueError(
                "members: no member has an opponent in generation 1; set role = 'main' for one, or "
                "draw.self above 0"
            )
        if self.turns == "alternate" and self.at_once not in (1, "auto"):
            raise ValueError(
                f"at_once = {self.at_once}: conflicts with turns = 'alternate', which trains one "
                "member at a time; set turns to 'together', or remove at_once"
            )
        return self

    def _check_member(self, name: str) -> None:
        member, others = self.members[name], [each for each in self.members if each != name]
        if not NAME.fullmatch(name):
            raise ValueError(
                f"members: invalid name {name!r}; start with a letter, and use at most 40 letters, "
                "digits, . _ + -"
            )
        for other in member.against or []:
            if other not in others:
                hint = nearest(other, others)
                raise ValueError(f"members.{name}.against = {other!r}: not another member; {hint}")
        if member.role == "exploiter" and not self.targets(name):
            raise ValueError(
                f"members.{name}.role = 'exploiter': no member has role main; list its opponents "
                "in against"
            )

    def targets(self, name: str) -> list[str]:
        """Return the members that an exploiter meets."""
        mains = [each for each, member in self.members.items() if member.role == "main"]
        return self.members[name].against or mains

    def fields(self, name: str) -> dict[str, Any]:
        """Return the fields of a member's runs that all generations share."""
        own = with_numbers({**self.common, **self.members[name].fields})
        return {**own, "loop.steps": self.updates}


def read_league(text: str, place: str) -> LeagueConfig:
    """Parse a league from YAML text; a `ConfigError`'s message begins with `place`."""
    return read_section(LeagueConfig, text, place, "members")
