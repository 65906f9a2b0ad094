"""Data and settings of commands with a section of their own: `unstable sft`, `learn`, `world`."""

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
    """game by its name in games; default: each game with an expert"""
    number: PositiveInt = Field(750, description="distinct prompts per game")
    rationale: bool = False
    """write a sentence of reasoning before the move (prompt styles that reason)"""


class LegalMovesData(Section):
    """Positions of random games with their legal moves, which teach only the form of answers."""

    kind: Literal["legal_moves"] = "legal_moves"
    game: str | None = None
    """game by its name in games; default: each game that lists its moves"""
    number: PositiveInt = Field(750, description="positions per game")
    moves: PositiveInt = 8
    """maximum legal moves shown per position; 1: random play"""


class RecordedData(Section):
    """Turns of games that a run has recorded."""

    kind: Literal["recorded"] = "recorded"
    files: Annotated[list[PathText], ONE_IS_A_LIST] = Field(min_length=1)
    """folders of runs, or their games/train-*.jsonl"""
    winners_only: bool = Field(True, description="only turns of seats that won")
    forfeits: bool = Field(False, description="count a win by another seat's forfeit as a win")


class JSONLData(Section):
    """A user's own file of examples."""

    kind: Literal["jsonl"] = "jsonl"
    path: PathText = Field(description="JSONL file of examples (docs/sft.md)")
    game: str | None = None
    """game by its name in games; default: the only one"""


DATA_KINDS = ["expert", "legal_moves", "recorded", "jsonl"]
DataConfig = ExpertData | LegalMovesData | RecordedData | JSONLData


class SFTConfig(Section):
    """Supervised training, with the model, games, learner and evaluation of the same config."""

    data: list[Annotated[DataConfig, Field(discriminator="kind")]] = Field(
        [ExpertData()], min_length=1, description=f"data to train on: {', '.join(DATA_KINDS)}"
    )
    epochs: PositiveInt = Field(3, description="maximum passes through the examples")
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """share of the prompts held out to measure the loss; 0: none"""
    patience: PositiveInt = 2
    """epochs without a lower held-out loss before training stops"""
    zip: PathText | None = Field(None, description="also pack the result as this zip file")


class WorldConfig(Section):
    """A small world: the model's size, and the length of its training on rules and moves."""

    out: PathText = Field("world", description="new folder of the model")
    hidden: PositiveInt = Field(64, description="width of the model; a multiple of 2 x heads")
    layers: PositiveInt = Field(2, description="decoder layers")
    heads: PositiveInt = Field(4, description="attention heads")
    games: PositiveInt = 3000
    """random games per env that provide positions"""
    steps: PositiveInt = Field(4000, description="maximum optimizer steps")
    legal: Share = 0.995
    """share of legal answers at which training ends, with kl and right; 1: all steps"""
    kl: NonNegativeFloat = 0.01
    """KL from uniform legal moves, in nats, at which training ends, with legal and right"""
    right: Share = 0.98
    """share of right answers of each kind at which training ends, with legal and kl"""
    batch_size: PositiveInt = Field(192, description="prompts per step")
    questions: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """share of the prompts that are questions on the rules; 0: only legal moves"""
    learning_rate: PositiveFloat = Field(4.0e-3, description="AdamW's peak rate")
    score_games: NonNegativeInt = 256
    """final games per env against random, to measure strength; 0: none"""


class SFTRun(RunConfig):
    """Config of `unstable sft`."""

    sft: SFTConfig = SFTConfig()


class WorldRun(RunConfig):
    """Config of `unstable world`."""

    world: WorldConfig = WorldConfig()


class JudgedConfig(Section):
    """Lowest score of a judge that a trajectory must have."""

    file: PathText
    """file of scores in each run's folder, such as judged/NAME.jsonl"""
    term: str = Field(description="term of the judge in the file")
    least: float
    """minimum mean score of a trajectory, before the weight; unjudged ones are left out"""


class LearnConfig(Section):
    """Recorded games to train on, the number of passes, and held-out games."""

    epochs: PositiveInt = Field(1, description="passes through the games")
    window: PositiveInt = 256
    """groups read and kept in memory at a time; does not change the order"""
    winners: bool = False
    """only trajectories that won, and not by another seat's forfeit"""
    versions: tuple[NonNegativeInt, NonNegativeInt] | None = None
    """only trajectories of these versions, first and last; null: all"""
    opponents: Annotated[list[str], ONE_IS_A_LIST] = []
    """only games against one of these: a name, past (any version), or self (none); []: all"""
    judged: JudgedConfig | None = None
    """only trajectories with a judge's score of file, term and least; null: all"""
    pairs: PathText | None = None
    """JSONL file of pairs, a chosen and a rejected answer per line; also without games"""
    pairs_game: str | None = None
    """game of the pairs, by its name in games; default: the only one"""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """share of games and pairs held out to measure the loss; 0: none"""
    held_out_every: NonNegativeInt = 0
    """updates between measurements of the held-out loss; 0: at the end of each epoch"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.versions is not None and self.versions[0] > self.versions[1]:
            raise ValueError(
                f"versions = {list(self.versions)}: first version above the last; swap them"
            )
        return self


class LearnRun(RunConfig):
    """Config of `unstable learn`."""

    learn: LearnConfig = LearnConfig()
