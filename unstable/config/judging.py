"""How versions are judged during a run: evaluation, and the guard that notices what goes wrong."""

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
    """How far versions are from an equilibrium, exactly, in games that can be solved exactly."""

    every: NonNegativeInt = 0
    """updates between measurements, besides the first and the last; 0: none"""
    games: list[str] = []
    """names of entries of games; none: all of those that can be solved exactly"""
    samples: NonNegativeInt = 0
    """answers to each prompt that stand for the policy, for a model that reasons first; 0: answers
    are scored, exactly"""
    nodes: PositiveInt = 200_000
    """the most positions that a game's tree may have; so many take about a minute and a gigabyte"""


class EvalConfig(Section):
    """How versions are evaluated."""

    every: NonNegativeInt = 4
    """updates between evaluations, besides the first and the last; 0: none at all"""
    games: PositiveInt = 16
    """games against each opponent in each env, in pairs that swap seats"""
    temperature: Annotated[list[NonNegativeFloat], ONE_IS_A_LIST] = Field([1.0], min_length=1)
    """the policy's sampling temperatures, 0: greedy; all games are played at each, and those of the
    first are rated"""
    constrained: bool = False
    """local models sample among the legal moves only, which games must list; such games are not
    rated"""
    votes: PositiveInt = 1
    """answers that the version samples for each turn; the action named most often is played; games
    with more than 1 are not rated"""
    best_of: BestOfConfig = BestOfConfig()
    opponents: Annotated[list[str], ONE_IS_A_LIST] = ["random"]
    """names of fixed opponents, or random, expert, rules, base; past: versions of the pool, spread
    evenly, which share the number of games"""
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
    """How often each kind of opponent is drawn after an alarm."""

    self: NonNegativeFloat = 0.25
    """share of games against the current policy, once `opponents` has acted"""
    past: NonNegativeFloat = Field(0.5, description="share against a past version from then on")
    fixed: NonNegativeFloat = Field(0.25, description="share against a fixed opponent from then on")


class GuardConfig(Section):
    """What is watched after each update; its page is docs/guard.md."""

    action: Annotated[list[Action], ONE_IS_A_LIST] = ["warn"]
    """what an alarm leads to besides its report: warn (nothing), opponents, learning_rate,
    rollback, or several of them; []: nothing is watched"""
    patience: PositiveInt = 10
    """updates without an alarm after an action, or without the same one after a warning"""
    factor: Fraction = 0.5
    """what the learning rate is multiplied by, by learning_rate"""
    opponents: GuardDrawConfig = GuardDrawConfig()
    thresholds: dict[Rule, PositiveFloat | None] = {}
    """alarm thresholds by rule, where not docs/guard.md's; null: no such alarm"""
