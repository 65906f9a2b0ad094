"""Lines and documents of a run's folder other than games, declared field by field."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta, Struct

from unstable.config import shown
from unstable.types import Batch, Reward, SampledTokens
from unstable.types.figures import MOST, Count, Figure, SeatNumber
from unstable.types.metrics import EvalKey, ExploitKey, MetricKey, RatingKey, VersusKey, WorstKey


class Record(Struct, kw_only=True, omit_defaults=True):
    """Base of records; unknown fields are ignored."""

    def problem(self) -> str | None:
        """Describe the first field that contradicts others; None if there is none."""
        return None


class SampleAdvantage(Record, kw_only=True):
    """Advantage in a trained sample's line, with the sample's game and turn."""

    game: Count
    turn: Count
    advantage: Figure


class SampleRecord(SampleAdvantage, kw_only=True):
    """Sample as an update trained on it, a line of `train/`."""

    env: str
    seat: SeatNumber
    group: int
    staleness: int | None
    prompt_length: Count
    completion_length: Count
    rewards: dict[str, Reward]  # including its trajectory's rewards
    reward: Figure
    outcome: Figure
    forfeit: bool
    sampled: SampledTokens


def sample_records(batch: Batch, advantages: Sequence[float]) -> list[SampleRecord]:
    """Return a batch as trained, one record per sample, in the batch's order."""
    samples = [(owner, sample) for owner in batch.trajectories for sample in owner.samples]
    return [
        SampleRecord(
            game=owner.game_id,
            env=owner.env,
            seat=owner.seat,
            turn=sample.turn,
            group=owner.group_id,
            staleness=batch.staleness(sample),
            prompt_length=len(sample.tokens.prompt_ids),
            completion_length=sample.tokens.num_scored,
            rewards=owner.rewards | sample.rewards,
            reward=sample.reward + owner.terminal_reward,
            outcome=owner.outcome,
            forfeit=owner.forfeit,
            advantage=advantage,
            sampled=sample.tokens,
        )
        for (owner, sample), advantage in zip(samples, advantages, strict=True)
    ]


class JudgedRecord(Record, kw_only=True):
    """Rewards of a trajectory, or of one of its turns, from terms evaluated on recorded games."""

    game: Count
    seat: SeatNumber
    turn: Count | None
    rewards: dict[str, Reward]


class JudgedLine(Record, kw_only=True):
    """Line of `judged/`: the terms of the file, or their rewards of a game."""

    terms: list[dict[str, Any]] | None = None
    game: Count | None = None
    judged: list[JudgedRecord] | None = None

    def problem(self) -> str | None:
        if self.terms is None and self.game is None:
            return "terms and game missing"
        return None if (self.judged is None) == (self.game is None) else "game or judged missing"


class RatingRecord(Record, kw_only=True):
    """Rating and results of a player in `ratings.json`."""

    player: str
    mu: Figure
    sigma: Figure
    games: Count
    wins: Count
    draws: Count
    losses: Count
    forfeits: Count


class Ratings(Record, kw_only=True):
    """Content of `ratings.json`."""

    players: list[RatingRecord]


class Policies(Record, kw_only=True):
    """File of `policies/`: by game, probabilities of legal actions at each decision."""

    games: dict[str, list[list[Figure]]]


class EnvironmentRecord(Record, kw_only=True):
    """Content of `environment.json`."""

    command: str | None
    python: str = ""
    platform: str = ""
    packages: dict[str, str]


class FailureRecord(Record, kw_only=True):
    """Line of `failures.jsonl`."""

    run: str
    line: str


class OfflineRun(Record, kw_only=True):
    """Run whose games are trained on, and the number of bytes read of each file."""

    run: str
    files: dict[str, Count]


class Offline(Record, kw_only=True):
    """Content of `offline.json`."""

    runs: list[OfflineRun]
    pairs: str | None = None


class ParameterGroup(Record, kw_only=True):
    """Parameters of AdamW that share its settings."""

    params: list[Count]


class AdamWState(Record, kw_only=True):
    """State of AdamW itself."""

    state: dict[int, dict[str, Any]]
    param_groups: Annotated[list[ParameterGroup], Meta(min_length=1)]


class OptimizerState(Record, kw_only=True):
    """State of the optimizer in a checkpoint."""

    adamw: AdamWState
    steps: Count
    scale: Figure


class LearnerState(Record, kw_only=True):
    """State of a learner, without its algorithm's state and without tensors."""

    version: Count
    bad_updates: Count
    optimizer: OptimizerState
    algorithm: dict[str, Any]


_TOGETHER: tuple[tuple[type[MetricKey], str, tuple[str, ...]], ...] = (
    (
        EvalKey,
        "score",
        ("low", "high", "games", "wins", "draws", "losses", "forfeits", "legal_moves"),
    ),
    (ExploitKey, "low", ("high",)),
    (RatingKey, "mu", ("sigma",)),
    (VersusKey, "games", ()),
    (WorstKey, "score", ("low", "high", "against", "games", "compared", "left_out")),
)
"""Figures of each kind of key that must have a value if the first figure has one."""


def row_problem(row: dict[str, Any]) -> str | None:
    """Describe the first invalid value of a row of `metrics.jsonl`; None if all are valid."""
    version = row.get("version")
    if type(version) is not int or not 0 <= version < 2**53:
        return f"version = {shown(version)}: not a version number"
    for name, value in row.items():
        if value is not None and not (isinstance(value, int | float) and abs(value) < MOST):
            return f"{name}: not a number in the valid range"
    for name, others in _groups(tuple(row)):
        if row[name] is not None:
            missing = [other for other in others if row.get(other) is None]
            if missing:
                return f"{missing[0]}: missing, but {name.rpartition('/')[2]} is set"
    return None


@lru_cache(maxsize=64)
def _groups(names: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """Return the names among these that require others, each with the names it requires."""
    found = []
    for name in names:
        for kind, first, others in _TOGETHER:
            if (parsed := kind.parse(name)) is not None and parsed[1] == first:
                found.append((name, [parsed[0].name(other) for other in others]))
    return found
