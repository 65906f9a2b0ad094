"""What is trained on: turns with their rewards, as trajectories, groups and batches.

Between the process that played and the one that learns they are packed: the loop, which hands them
on, knows how many there are and of which version, and never makes their tokens objects.
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
    """One turn as trained. `rewards` has the terms that judge it, which add up to `reward`.

    What judges the whole trajectory is the trajectory's.
    """

    turn: int  # Turn.index
    tokens: SampledTokens
    rewards: dict[str, Reward]

    @property
    def version(self) -> int:
        """The version of the policy that sampled it."""
        assert self.tokens.version is not None, "only the policy is trained"
        return self.tokens.version

    @property
    def reward(self) -> float:
        """The turn's weighted terms, added up."""
        return _weighted(self.rewards)


class Trajectory(Plain, frozen=True, kw_only=True):
    """One seat's samples of one game, in order. `rewards` holds the terms that judge it as a whole.

    Whatever its number of turns, such a term counts once, with its weight.
    """

    game_id: int
    env: str  # a GameConfig's key
    seat: int
    group_id: int
    outcome: float  # of the seat, unshaped
    forfeit: bool  # this seat forfeited
    samples: tuple[Sample, ...]
    rewards: dict[str, Reward] = {}

    @property
    def terminal_reward(self) -> float:
        """The weighted terms that judge the whole trajectory, added up."""
        return _weighted(self.rewards)

    @property
    def reward(self) -> float:
        """Reward that groups compare: the terminal one, and the mean of the turns' own.

        It is exact before it is rounded, so that equal rewards tie whatever their number.
        """
        terminal = self.terminal_reward
        values = [sample.reward + terminal for sample in self.samples]
        # Of equal values, as outcomes are, without the exact fractions that others need.
        return values[0] if min(values) == max(values) else mean(values)

    @property
    def version(self) -> int:
        """The oldest version that sampled any of it."""
        return min(sample.version for sample in self.samples)


_ENCODER = msgpack.Encoder()


@cache
def _decoder() -> "msgpack.Decoder[Trajectory]":
    return msgpack.Decoder(Trajectory)


class PackedTrajectory(NamedTuple):
    """A trajectory as the loop holds it; `content` is all of it, which only a learner opens."""

    game_id: int
    seat: int
    group_id: int
    num_samples: int
    version: int  # the oldest that sampled any of it
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
        """The trajectory again, to the bit."""
        return _decoder().decode(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories whose advantages are computed together, all of one `group_id`."""

    trajectories: tuple[Trajectory, ...]

    @property
    def tied(self) -> bool:
        """Return whether every trajectory earned the same: comparing them, nothing is learned."""
        return len({trajectory.reward for trajectory in self.trajectories}) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole groups, oldest first, drawn for an update of version `version` into `version + 1`.

    Of `recorded` ones the samples' versions are those of the run that played them.
    """

    version: int
    groups: tuple[Group, ...]
    recorded: bool = False

    @property
    def trajectories(self) -> list[Trajectory]:
        """Those of all groups, in order."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def samples(self) -> list[Sample]:
        """Those of all trajectories, in order."""
        return [sample for trajectory in self.trajectories for sample in trajectory.samples]

    def staleness(self, sample: Sample) -> int | None:
        """Versions between the one that sampled and the one that is updated.

        None of recorded games: another run's versions have no distance to this one's.
        """
        return None if self.recorded else self.version - sample.version


class Unwritable(NamedTuple):
    """Stands for lines that could not be made. Unwritable("ValueError: nan is not finite")"""

    why: str

    def complain(self) -> None:
        """Raise why, where they would have been written."""
        raise ValueError(self.why)


class PackedBatch(NamedTuple):
    """A batch on its way to the learner: groups of packed trajectories, oldest first."""

    version: int
    groups: tuple[tuple[PackedTrajectory, ...], ...]
    recorded: bool = False

    @property
    def num_samples(self) -> int:
        """Samples of all groups."""
        return sum(each.num_samples for group in self.groups for each in group)

    def opened(self) -> Batch:
        """Open the batch for a learner."""
        groups = (Group(trajectories=tuple(e.opened() for e in group)) for group in self.groups)
        return Batch(version=self.version, groups=tuple(groups), recorded=self.recorded)


class MeanLoss(NamedTuple):
    """The loss of a batch, and the tokens that it is of; without tokens there is none."""

    value: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Result of an update; `advantages` in the order of the batch's samples."""

    version: int  # that this update made
    metrics: dict[str, float | None]  # names that begin with learn/
    advantages: list[float]
    refusals: list[str] = field(default_factory=list)  # why, for each step that was not made
    lines: bytes | Unwritable | None = None  # the samples as `train/` has them; None: not asked for
