"""What `unstable sft` trains on before self-play, and for how long."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from unstable.config.base import PathText, PositiveInt, Section


class ExpertData(Section):
    """Positions with an expert's moves."""

    kind: Literal["expert"] = Field("expert", description="expert, recorded or jsonl")
    game: str | None = Field(
        None, description="the game, by its name in games; default: each that has an expert"
    )
    number: PositiveInt = Field(750, description="different prompts of each game")
    rationale: bool = Field(
        False, description="a sentence of reasoning before the move (prompt styles that reason)"
    )


class RecordedData(Section):
    """Turns of games that a run has recorded."""

    kind: Literal["recorded"] = "recorded"
    files: list[PathText] = Field(
        min_length=1, description="folders of runs, or their games/train-*.jsonl"
    )
    winners_only: bool = Field(True, description="turns of seats that won, and no others")
    forfeits: bool = Field(False, description="a win by another seat's forfeit counts as one")

    @field_validator("files", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value


class JSONLData(Section):
    """A file of a user's own."""

    kind: Literal["jsonl"] = "jsonl"
    path: PathText = Field(description="a file of your own: docs/sft.md says what a line holds")
    game: str | None = Field(
        None, description="the game, by its name in games; default: the only one"
    )


DATA_KINDS = ["expert", "recorded", "jsonl"]
DataConfig = ExpertData | RecordedData | JSONLData


class SFTConfig(Section):
    """Supervised training, with the model, games, learner and evaluation of the same config."""

    data: list[Annotated[DataConfig, Field(discriminator="kind")]] = Field(
        [ExpertData()], min_length=1, description="what is trained on: expert, recorded or jsonl"
    )
    epochs: PositiveInt = Field(3, description="times that the examples are gone through, at most")
    held_out: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.1, description="share of the prompts that are kept to measure the loss; 0: none"
    )
    patience: PositiveInt = Field(
        2, description="epochs without a lower held-out loss before it stops"
    )
    zip: PathText | None = Field(None, description="also pack the result as this zip file")
