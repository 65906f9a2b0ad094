"""What a `run_state.json` has to hold, before anything of it is used: the file is not trusted."""

import random
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, NonNegativeInt, ValidationError

from unstable.config import DrawConfig
from unstable.records.games import Record, read_spec
from unstable.types import PlayerId

RandomState = tuple[int, list[int], float | None]


def _parsed(name: str) -> str:
    return PlayerId.parse(name).name


def _read(row: Record) -> Record:
    try:
        read_spec(row)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("no game as it was decided on") from error
    return row


def _set(state: RandomState) -> RandomState:
    version, numbers, gauss = state
    try:
        random.Random().setstate((version, tuple(numbers), gauss))
    except (TypeError, OverflowError) as error:
        raise ValueError("no random state") from error
    return state


Counts = dict[str, int]
Figures = dict[str, float]
Player = Annotated[str, AfterValidator(_parsed)]
Places = list[tuple[int, int]]  # game and seat
Point = tuple[int, float, float]  # version, figure, size


class Ratings(BaseModel):
    ratings: dict[Player, tuple[float, float]]
    results: dict[Player, Counts]


class Drawing(BaseModel):
    next_game: NonNegativeInt
    next_group: NonNegativeInt
    shares: DrawConfig = DrawConfig()  # which earlier checkpoints lack
    random: Annotated[RandomState, AfterValidator(_set)]


class MetricHistory(BaseModel):
    start: list[Point]
    recent: list[Point]
    least: Point | None


class Scored(BaseModel):
    recent: list[Point]
    best: Point | None


class Played(BaseModel):
    results: list[tuple[str, str, int]]
    actions: dict[str, Counts]


class Guarded(BaseModel):
    courses: dict[str, MetricHistory]
    scores: dict[str, Scored]
    best: tuple[int, float] | None
    quiet: Counts
    is_due: bool
    played: Played = Played(results=[], actions={})  # which earlier checkpoints lack


class Dropped(BaseModel):
    stale: int
    capacity: int
    failed: int
    tied: int


class Buffered(BaseModel):
    groups: list[tuple[int, Places]]
    waiting: list[tuple[int, int, bool, Places]]
    tied_since_draw: int
    dropped: Dropped


class Play(BaseModel):
    sums: tuple[Figures, Figures, Figures]
    actions: dict[str, Counts]
    courses: dict[str, list[tuple[list[str], int]]]


class Tracked(BaseModel):
    row: dict[str, float | bool | None]
    times: Figures
    seconds: float
    play: Play


class Trust(BaseModel):
    ended: Counts
    raised: Counts


class Acting(BaseModel):
    tally: tuple[int, int]
    trust: Trust
    forks: list[tuple[str, int, int, float]]


class RunState(BaseModel):
    """All that `state.restore` reads."""

    version: NonNegativeInt
    settled: bool
    evaluated: int
    measured: int
    first_scores: list[tuple[str | int, float]]
    first_payoffs: list[tuple[str, float]] = []  # which earlier checkpoints lack
    failures: NonNegativeInt
    published: list[NonNegativeInt]
    registry: Ratings
    schedule: Drawing
    guard: Guarded
    buffer: Buffered
    oldest: NonNegativeInt
    in_flight: list[Annotated[dict[str, Any], AfterValidator(_read)]]
    tracker: Tracked
    actors: list[Acting]
    marks: dict[str, NonNegativeInt]


def is_run_state(text: bytes, version: int) -> bool:
    """Whether a file's content is the state of a run at this version."""
    try:
        state = RunState.model_validate_json(text, strict=True)
    except ValidationError:
        return False
    players = map(PlayerId.parse, state.registry.ratings)
    newest = max((player.version or 0 for player in players), default=None)
    return state.version == newest == version
