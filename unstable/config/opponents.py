"""Whom the policy plays against."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from unstable.config.base import NonNegativeFloat, PositiveInt, Section


class DrawConfig(Section):
    self: NonNegativeFloat = Field(
        0.5, description="share of games against the current policy, all seats trained"
    )
    past: NonNegativeFloat = Field(0.35, description="share of games against a past version")
    fixed: NonNegativeFloat = Field(0.15, description="share of games against a fixed opponent")


class OpponentConfig(Section):
    name: str | None = Field(
        None, description="name in tables; default: made from the kind and its target"
    )


class RandomOpponent(OpponentConfig):
    kind: Literal["random"] = Field(
        "random", description="random, minimax, python, checkpoint or openai"
    )

    @property
    def key(self) -> str:
        return self.name or "random"


class MinimaxOpponent(OpponentConfig):
    kind: Literal["minimax"] = "minimax"

    @property
    def key(self) -> str:
        return self.name or "minimax"


class PythonOpponent(OpponentConfig):
    kind: Literal["python"] = "python"
    target: str = Field(description="module:Class, called with an observation, returns the action")

    @property
    def key(self) -> str:
        return self.name or f"python:{self.target.rpartition(':')[2]}"


class CheckpointOpponent(OpponentConfig):
    kind: Literal["checkpoint"] = "checkpoint"
    path: str = Field(description="folder of a LoRA adapter of the same base model")
    temperature: NonNegativeFloat | None = Field(
        None, description="its sampling temperature; default: the game's"
    )

    @property
    def key(self) -> str:
        return self.name or f"checkpoint:{Path(self.path).name}"


class OpenAIOpponent(OpponentConfig):
    kind: Literal["openai"] = "openai"
    model: str = Field(description="model name at the endpoint")
    base_url: str = Field("https://api.openai.com/v1", description="an OpenAI-compatible endpoint")
    api_key_env: str = Field(
        "OPENAI_API_KEY", description="the environment variable that holds the key"
    )
    temperature: NonNegativeFloat | None = Field(
        None, description="its sampling temperature; default: the game's"
    )
    max_tokens: PositiveInt = Field(512, description="longest answer, in tokens")

    @property
    def key(self) -> str:
        return self.name or f"openai:{self.model}"


RESERVED_NAMES = ("base", "self", "past", "fixed", "others", "alone")
OPPONENT_KINDS = ["random", "minimax", "python", "checkpoint", "openai"]
FixedOpponent = (
    RandomOpponent | MinimaxOpponent | PythonOpponent | CheckpointOpponent | OpenAIOpponent
)


class OpponentsConfig(Section):
    draw: DrawConfig = DrawConfig()
    fixed: list[Annotated[FixedOpponent, Field(discriminator="kind")]] = Field(
        [RandomOpponent()],
        description="opponents that never change: random, minimax, python, checkpoint, openai",
    )
    pool_size: PositiveInt = Field(
        32, description="past versions kept as opponents, the newest ones"
    )
