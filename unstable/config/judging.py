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
    """names of entries of games; []: all games that can be solved exactly"""
    samples: NonNegativeInt = 0
    """answers sampled per prompt to estimate a reasoning policy; 0: exact scores"""
    nodes: PositiveInt = 200_000
    """most positions of a game's tree; 200,000 take about a minute and a gigabyte"""


class EvalConfig(Section):
    """Evaluation of versions against fixed opponents and past versions."""

    every: NonNegativeInt = 4
    """updates between evaluations, in addition to the first and the last; 0: no evaluation"""
    games: PositiveInt = 16
    """games against each opponent in each env, in pairs that swap seats"""
    temperature: Annotated[list[NonNegativeFloat], ONE_IS_A_LIST] = Field([1.0], min_length=1)
    """the policy's sampling temperatures, 0: greedy; all games at each; only the first is rated"""
    constrained: bool = False
    """local models sample only legal moves, which games must list; such games are not rated"""
    votes: PositiveInt = 1
    """answers sampled for each turn; the most frequent action is played; above 1: unrated"""
    best_of: BestOfConfig = BestOfConfig()
    opponents: Annotated[list[str], ONE_IS_A_LIST] = ["random"]
    """names of fixed opponents, random, expert, rules, base, or past (versions across the pool)"""
    exploitability: ExploitabilityConfig = ExploitabilityConfig()

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Self:
        if self.votes > 1 and self.best_of.answers > 1:
            raise ValueError(
                f"votes = {self.votes} and best_of.answers = {self.best_of.answers} both choose "
                "what is played; set one of them to 1"
            )
        return self

    @field_validator("temperature")
    @classmethod
    def _distinct(cls, temperatures: list[float]) -> list[float]:
        if len(set(temperatures)) < len(temperatures):
            raise PydanticCustomError("twice", "one is there twice; leave it out")
        return temperatures


class GuardDrawConfig(DrawConfig):
    """Shares of each kind of opponent after an alarm."""

    self: NonNegativeFloat = 0.25
    """share of games against the current policy, after the action opponents"""
    past: NonNegativeFloat = Field(0.5, description="share against a past version from then on")
    fixed: NonNegativeFloat = Field(0.25, description="share against a fixed opponent from then on")


class GuardConfig(Section):
    """Collapse guard, which checks each update; docs/guard.md explains it."""

    action: Annotated[list[Action], ONE_IS_A_LIST] = ["warn"]
    """actions on an alarm: warn (only report), opponents, learning_rate, rollback; []: no guard"""
    patience: PositiveInt = 10
    """updates without an alarm after an action, or without the same alarm after a warning"""
    factor: Fraction = 0.5
    """factor of the learning rate in the action learning_rate"""
    opponents: GuardDrawConfig = GuardDrawConfig()
    thresholds: dict[Rule, PositiveFloat | None] = {}
    """alarm thresholds by rule that replace docs/guard.md's; null: no such alarm"""
