"""How versions are judged during a run."""

from typing import Any

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from unstable.config.base import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Section,
)
from unstable.config.renamed import EXPERT_ALIAS


class ExploitabilityConfig(Section):
    """How far versions are from an equilibrium, exactly, in games that can be solved exactly."""

    every: NonNegativeInt = Field(
        0, description="updates between measurements, besides the first and the last; 0: none"
    )
    games: list[str] = Field(
        [], description="names of entries of games; none: all of those that can be solved exactly"
    )
    samples: NonNegativeInt = Field(
        0,
        description="answers to each prompt that stand for the policy, for a model that reasons "
        "first; 0: answers are scored, exactly",
    )


class EvalConfig(Section):
    """How versions are evaluated."""

    every: NonNegativeInt = Field(
        4, description="updates between evaluations, besides the first and the last; 0: none at all"
    )
    games: PositiveInt = Field(
        16, description="games against each opponent in each env, in pairs that swap seats"
    )
    temperature: list[NonNegativeFloat] = Field(
        [1.0],
        min_length=1,
        description="the policy's sampling temperatures, 0: greedy; all games are played at each, "
        "and those of the first are rated",
    )
    constrained: bool = Field(
        False,
        description="local models sample among the legal moves only, which games must list; "
        "such games are not rated",
    )
    votes: PositiveInt = Field(
        1,
        description="answers that the version samples for each turn; the action named most "
        "often is played; games with more than 1 are not rated",
    )
    opponents: list[str] = Field(
        ["random"], description="names of fixed opponents, or random, expert, rules, base"
    )
    exploitability: ExploitabilityConfig = ExploitabilityConfig()

    @field_validator("opponents", "temperature", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | int | float) else value

    @field_validator("temperature")
    @classmethod
    def _distinct(cls, temperatures: list[float]) -> list[float]:
        if len(set(temperatures)) < len(temperatures):
            raise PydanticCustomError("twice", "one is there twice; leave it out")
        return temperatures

    @field_validator("opponents")
    @classmethod
    def _alias(cls, names: list[str]) -> list[str]:
        return ["expert" if name == EXPERT_ALIAS else name for name in names]
