"""Evaluation of versions during a run, and the collapse guard."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator
from pydantic_core import PydanticCustomError

from unstable.config.base import ONE_IS_A_LIST, NonNegativeInt, PositiveInt, Section
from unstable.config.judges import BestOfConfig
from unstable.config.opponents import DrawConfig

Action = Literal["warn", "opponents", "learning_rate", "rollback"]
Rule = Literal[
    "entropy",
    "entropy_fall",
    "information",
    "kl_sampling",
    "kl_reference",
    "length",
    "truncation",
    "forfeits",
    "draws",
    "tied",
    "score",
]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class ExploitabilityConfig(Section):
    """Exact exploitability of versions, in games that can be solved exactly."""

    every: NonNegativeInt = 0
    """updates between measurements, in addition to the first and the last; 0: none"""
    games: list[str] = []
    """names of games; []: all games that can be solved exactly"""
    samples: NonNegativeInt = 0
    """answers sampled per prompt to estimate a reasoning policy; 0: exact scores"""
    nodes: PositiveInt = 200_000
    """maximum positions of a game's tree; 200,000 take about a minute and a gigabyte"""


class EvalConfig(Section):
    """Evaluation of versions against fixed opponents and past versions."""

    every: NonNegativeInt = 4
    """updates between evaluations, in addition to the first and the last; 0: no evaluation"""
    games: PositiveInt = 16
    """games per opponent and env, in pairs with swapped seats"""
    temperature: Annotated[list[NonNegativeFloat], ONE_IS_A_LIST] = Field([1.0], min_length=1)
    """sampling temperatures, with all games at each; 0: greedy; only the first is rated"""
    constrained: bool = False
    """sample only legal moves from local models; games must list them; such games are unrated"""
    votes: PositiveInt = 1
    """answers sampled per turn; the most frequent action is played; above 1: unrated"""
    best_of: BestOfConfig = BestOfConfig()
    opponents: Annotated[list[str], ONE_IS_A_LIST] = ["random"]
    """names of fixed opponents, random, expert, rules, base, or past (versions across the pool)"""
    exploitability: ExploitabilityConfig = ExploitabilityConfig()

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Self:
        if self.votes > 1 and self.best_of.answers > 1:
            raise ValueError(
                f"votes = {self.votes}: conflicts with best_of.answers = {self.best_of.answers}; "
                "set one of them to 1"
            )
        return self

    @field_validator("temperature")
    @classmethod
    def _distinct(cls, temperatures: list[float]) -> list[float]:
        if len(set(temperatures)) < len(temperatures):
            raise PydanticCustomError("twice", "duplicate value; remove one of them")
        return temperatures


class GuardDrawConfig(DrawConfig):
    """Shares of each kind of opponent after an alarm."""

    self: NonNegativeFloat = 0.25
    """share against the current policy after alarms"""
    past: NonNegativeFloat = Field(0.5, description="share against past versions after alarms")
    fixed: NonNegativeFloat = Field(0.25, description="share against fixed opponents after alarms")


class GuardConfig(Section):
    """Collapse guard, which checks each update; docs/guard.md explains it."""

    action: Annotated[list[Action], ONE_IS_A_LIST] = ["warn"]
    """actions on an alarm: warn (only log), opponents, learning_rate, rollback; []: no guard"""
    patience: PositiveInt = 10
    """updates without alarms after an action, or without the same alarm after a warning"""
    factor: Fraction = 0.5
    """multiplier of the learning rate for the action learning_rate"""
    opponents: GuardDrawConfig = GuardDrawConfig()
    thresholds: dict[Rule, PositiveFloat | None] = {}
    """alarm thresholds by rule, instead of docs/guard.md's; null: no such alarm"""
