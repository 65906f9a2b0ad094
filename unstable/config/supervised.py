"""What commands with a section of their own train on or make: `unstable sft`, `learn`, `world`."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from unstable.config.base import (
    ONE_IS_A_LIST,
    NonNegativeInt,
    PathText,
    PositiveInt,
    Section,
    Share,
)
from unstable.config.run import RunConfig


class ExpertData(Section):
    """Positions with an expert's moves."""

    kind: Literal["expert"] = Field("expert", description="expert, legal_moves, recorded or jsonl")
    game: str | None = None
    """the game, by its name in games; default: each that has an expert"""
    number: PositiveInt = Field(750, description="different prompts of each game")
    rationale: bool = False
    """a sentence of reasoning before the move (prompt styles that reason)"""


class LegalMovesData(Section):
    """Positions of random games with their legal moves, which teach the form of answers alone."""

    kind: Literal["legal_moves"] = "legal_moves"
    game: str | None = None
    """the game, by its name in games; default: each that lists its moves"""
    number: PositiveInt = Field(750, description="positions of each game")
    moves: PositiveInt = 8
    """legal moves that are shown of a position, at most; 1: random play"""


class RecordedData(Section):
    """Turns of games that a run has recorded."""

    kind: Literal["recorded"] = "recorded"
    files: Annotated[list[PathText], ONE_IS_A_LIST] = Field(min_length=1)
    """folders of runs, or their games/train-*.jsonl"""
    winners_only: bool = Field(True, description="turns of seats that won, and no others")
    forfeits: bool = Field(False, description="a win by another seat's forfeit counts as one")


class JSONLData(Section):
    """A file of a user's own."""

    kind: Literal["jsonl"] = "jsonl"
    path: PathText = Field(description="a file of your own: docs/sft.md says what a line holds")
    game: str | None = None
    """the game, by its name in games; default: the only one"""


DATA_KINDS = ["expert", "legal_moves", "recorded", "jsonl"]
DataConfig = ExpertData | LegalMovesData | RecordedData | JSONLData


class SFTConfig(Section):
    """Supervised training, with the model, games, learner and evaluation of the same config."""

    data: list[Annotated[DataConfig, Field(discriminator="kind")]] = Field(
        [ExpertData()], min_length=1, description=f"what is trained on: {', '.join(DATA_KINDS)}"
    )
    epochs: PositiveInt = Field(3, description="times that the examples are gone through, at most")
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """share of the prompts that are kept to measure the loss; 0: none"""
    patience: PositiveInt = 2
    """epochs without a lower held-out loss before it stops"""
    zip: PathText | None = Field(None, description="also pack the result as this zip file")


class WorldConfig(Section):
    """A small world: the model's size, and how long it learns to speak, move and see."""

    out: PathText = Field("world", description="the new folder that the model is written to")
    hidden: PositiveInt = Field(64, description="width of the model; a multiple of 2 x heads")
    layers: PositiveInt = Field(2, description="decoder layers")
    heads: PositiveInt = Field(4, description="attention heads")
    games: PositiveInt = 3000
    """games of random moves in each env whose positions are learned from"""
    steps: PositiveInt = Field(4000, description="optimizer steps at most")
    legal: Share = 0.995
    """share of legal answers with which learning ends, once kl and right are reached as well; 1:
    all steps are made"""
    kl: NonNegativeFloat = 0.01
    """the same of the KL of an even choice of legal moves to the model's, nats"""
    right: Share = 0.98
    """the same of the share of right answers to each kind of question"""
    batch_size: PositiveInt = Field(192, description="prompts of a step")
    questions: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """share of them that are questions on the rules; 0: legal moves alone"""
    learning_rate: PositiveFloat = Field(4.0e-3, description="AdamW's peak rate")
    score_games: NonNegativeInt = 256
    """games against random in each env in the end, to show what it is; 0: none"""


class SFTRun(RunConfig):
    """The config of `unstable sft`."""

    sft: SFTConfig = SFTConfig()


class WorldRun(RunConfig):
    """The config of `unstable world`."""

    world: WorldConfig = WorldConfig()


class JudgedConfig(Section):
    """What a judge's score has to be."""

    file: PathText
    """the scores, a file in each run's folder, such as judged/NAME.jsonl"""
    term: str = Field(description="the judge's term in it")
    least: float
    """lowest score, before its weight, as a mean over what was judged of the trajectory; one that
    was not judged is left out"""


class LearnConfig(Section):
    """Which recorded games are trained on, how often, and in which order."""

    epochs: PositiveInt = Field(1, description="times that the games are gone through")
    window: PositiveInt = 256
    """groups that are read at a time, and so in memory beside a batch; orders are the same with
    any"""
    winners: bool = False
    """only trajectories that won, and not by another seat's forfeit"""
    versions: tuple[NonNegativeInt, NonNegativeInt] | None = None
    """only trajectories of these versions, from and to; null: all"""
    opponents: Annotated[list[str], ONE_IS_A_LIST] = []
    """only games with one of them at a seat that was not trained: a name as games have it, past
    (any version), or self (no such seat); empty: all"""
    judged: JudgedConfig | None = None
    """only trajectories with a judge's score of file, term and least; null: all"""
    pairs: PathText | None = None
    """a JSONL file of pairs of your own beside the games, or without any: a chosen and a rejected
    answer a line, for algorithms that learn from pairs"""
    pairs_game: str | None = None
    """the game of the pairs, by its name in games; default: the only one"""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """share of the games, and pairs, that are not trained on, to measure the loss; 0: none"""
    held_out_every: NonNegativeInt = 0
    """updates between two of these measurements; 0: at the end of each epoch"""

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
