"""Training data: turns with their rewards, as trajectories, groups and batches.

Trajectories are packed between the process that plays and the process that learns: the loop passes
them on and knows their sizes and versions, but never decodes their tokens.
"""

from dataclasses import dataclass, field
from functools import cache
from statistics import mean
from typing import NamedTuple

from msgspec import msgpack

from unstable.types.answers import Plain, SampledTokens
from unstable.types.games import Reward


def _weighted(rewards: dict[str, Reward]) -> float:
    return sum(reward.weighted for reward in rewards.values())


class Sample(Plain, frozen=True, kw_only=True):
    """One turn as trained; `rewards` has the terms that judge it, whose sum is `reward`.

    Terms that judge the whole trajectory are in `Trajectory.rewards`.
    """

    turn: int  # Turn.index
    tokens: SampledTokens
    rewards: dict[str, Reward]

    @property
    def version(self) -> int:
        """Version of the policy that sampled the turn."""
        assert self.tokens.version is not None, "only the policy's turns are trained on"
        return self.tokens.version

    @property
    def reward(self) -> float:
        """Sum of the turn's weighted terms."""
        return _weighted(self.rewards)


class Trajectory(Plain, frozen=True, kw_only=True):
    """One seat's samples of one game, in order; `rewards` has the terms that judge it as a whole.

    Such a term counts once, with its weight, for any number of turns.
    """

    game_id: int
    env: str  # a GameConfig's key
    seat: int
    group_id: int
    outcome: float  # of the seat, unshaped
    forfeit: bool  # True if this seat forfeited
    samples: tuple[Sample, ...]
    rewards: dict[str, Reward] = {}

    @property
    def terminal_reward(self) -> float:
        """Sum of the weighted terms that judge the whole trajectory."""
        return _weighted(self.rewards)

    @property
    def reward(self) -> float:
        """Reward that groups compare: the terminal reward plus the mean of the turns' rewards.

        The mean is exact before rounding, so that equal rewards tie for any number of turns.
        """
        terminal = self.terminal_reward
        values = [sample.reward + terminal for sample in self.samples]
        # Avoid the slow exact mean for equal values, such as outcomes.
        return values[0] if min(values) == max(values) else mean(values)

    @property
    def version(self) -> int:
        """Oldest version that sampled any of the turns."""
        return min(sample.version for sample in self.samples)


_ENCODER = msgpack.Encoder()


@cache
def _decoder() -> "msgpack.Decoder[Trajectory]":
    return msgpack.Decoder(Trajectory)


class PackedTrajectory(NamedTuple):
    """A trajectory as the loop holds it; only a learner decodes `content`, the whole trajectory."""

    game_id: int
    seat: int
    group_id: int
    num_samples: int
    version: int  # oldest version that sampled a turn
    reward: float  # Trajectory.reward
    content: bytes

    @classmethod
    def of(cls, trajectory: Trajectory) -> "PackedTrajectory":
        """Pack a trajectory."""
        return cls(
            trajectory.game_id,
            trajectory.seat,
            trajectory.group_id,
            len(trajectory.samples),
            trajectory.version,
            trajectory.reward,
            _ENCODER.encode(trajectory),
        )

    def opened(self) -> Trajectory:
        """Return the original trajectory, bit for bit."""
        return _decoder().decode(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories whose advantages are computed together, all of one `group_id`."""

    trajectories: tuple[Trajectory, ...]

    @property
    def tied(self) -> bool:
        """True if all trajectories have equal rewards, so that comparing them teaches nothing."""
        return len({trajectory.reward for trajectory in self.trajectories}) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole groups, oldest first, drawn for an update of version `version` into `version + 1`.

    If `recorded`, the samples' versions belong to the run that played them.
    """

    version: int
    groups: tuple[Group, ...]
    recorded: bool = False

    @property
    def trajectories(self) -> list[Trajectory]:
        """Trajectories of all groups, in order."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def samples(self) -> list[Sample]:
        """Samples of all trajectories, in order."""
        return [sample for trajectory in self.trajectories for sample in trajectory.samples]

    def staleness(self, sample: Sample) -> int | None:
        """Return the versions between the one that sampled and the one that is updated.

        None for recorded games: another run's versions have no distance to this run's.
        """
        return None if self.recorded else self.version - sample.version


class Unwritable(NamedTuple):
    """A placeholder for lines that failed to encode. Unwritable("ValueError: nan is not finite")"""

    why: str

    def complain(self) -> None:
        """Raise `ValueError` with the reason, when the lines would have been written."""
        raise ValueError(self.why)


class PackedBatch(NamedTuple):
    """A batch on its way to the learner: groups of packed trajectories, oldest first."""

    version: int
    groups: tuple[tuple[PackedTrajectory, ...], ...]
    recorded: bool = False

    @property
    def num_samples(self) -> int:
        """Number of samples in all groups."""
        return sum(each.num_samples for group in self.groups for each in group)

    def opened(self) -> Batch:
        """Return the decoded batch."""
        groups = (Group(trajectories=tuple(e.opened() for e in group)) for group in self.groups)
        return Batch(version=self.version, groups=tuple(groups), recorded=self.recorded)


class MeanLoss(NamedTuple):
    """The mean loss of a batch over its `tokens`; `value` is meaningless for 0 tokens."""

    value: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Result of an update; `advantages` are in the order of the batch's samples."""

    version: int  # version made by this update
    metrics: dict[str, float | None]  # by name (learn/...)
    advantages: list[float]
    refusals: list[str] = field(default_factory=list)  # reasons of skipped optimizer steps
    lines: bytes | Unwritable | None = None  # lines of samples for `train/`; None: not requested
