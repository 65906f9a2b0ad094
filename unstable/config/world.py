"""What `unstable world` makes: a tiny base model that speaks the games of a config."""

from typing import Annotated

from pydantic import Field

from unstable.config.base import NonNegativeInt, PathText, PositiveFloat, PositiveInt, Section


class WorldConfig(Section):
    """A small world: the model's size, and how long it learns to speak, move and see."""

    out: PathText = Field("world", description="the new folder that the model is written to")
    hidden: PositiveInt = Field(64, description="width of the model; a multiple of 2 x heads")
    layers: PositiveInt = Field(2, description="decoder layers")
    heads: PositiveInt = Field(4, description="attention heads")
    games: PositiveInt = Field(
        3000, description="games of random moves in each env whose positions are learned from"
    )
    steps: PositiveInt = Field(4000, description="optimizer steps")
    batch_size: PositiveInt = Field(192, description="prompts of a step")
    questions: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5, description="share of them that are questions on the rules; 0: legal moves alone"
    )
    learning_rate: PositiveFloat = Field(4.0e-3, description="AdamW's peak rate")
    score_games: NonNegativeInt = Field(
        256, description="games against random in each env in the end, to show what it is; 0: none"
    )
