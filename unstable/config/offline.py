"""Training on recorded games: what `unstable learn` goes through, and how."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from unstable.config.base import ONE_IS_A_LIST, NonNegativeInt, PathText, PositiveInt, Section
from unstable.config.run import RunConfig


class JudgedConfig(Section):
    """What a judge's score has to be."""

    file: PathText = Field(
        description="the scores, a file in each run's folder, such as judged/NAME.jsonl"
    )
    term: str = Field(description="the judge's term in it")
    least: float = Field(
        description="lowest score, before its weight, as a mean over what was judged of the "
        "trajectory; one that was not judged is left out"
    )


class LearnConfig(Section):
    """Which recorded games are trained on, how often, and in which order."""

    epochs: PositiveInt = Field(1, description="times that the games are gone through")
    window: PositiveInt = Field(
        256,
        description="groups that are read at a time, and so in memory beside a batch; orders are "
        "the same with any",
    )
    winners: bool = Field(
        False, description="only trajectories that won, and not by another seat's forfeit"
    )
    versions: tuple[NonNegativeInt, NonNegativeInt] | None = Field(
        None, description="only trajectories of these versions, from and to; null: all"
    )
    opponents: Annotated[list[str], ONE_IS_A_LIST] = Field(
        [],
        description="only games with one of them at a seat that was not trained: a name as games "
        "have it, past (any version), or self (no such seat); empty: all",
    )
    judged: JudgedConfig | None = Field(
        None,
        description="only trajectories with a judge's score of file, term and least; null: all",
    )
    pairs: PathText | None = Field(
        None,
        description="a JSONL file of pairs of your own beside the games, or without any: a chosen "
        "and a rejected answer a line, for algorithms that learn from pairs",
    )
    pairs_game: str | None = Field(
        None, description="the game of the pairs, by its name in games; default: the only one"
    )
    held_out: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of the games, and pairs, that are not trained on, to measure the loss; "
        "0: none",
    )
    held_out_every: NonNegativeInt = Field(
        0, description="updates between two of these measurements; 0: at the end of each epoch"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.versions is not None and self.versions[0] > self.versions[1]:
            raise ValueError(
                f"versions = {list(self.versions)} holds none; give the first one first"
            )
        return self


class LearnRun(RunConfig):
    """The config of `unstable learn`."""

    learn: LearnConfig = LearnConfig()
