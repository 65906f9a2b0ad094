"""What is trained on: turns with their rewards, as trajectories, groups and batches."""

from dataclasses import dataclass, field
from statistics import mean
from typing import NamedTuple

from unstable.types.answers import SampledTokens


class Reward(NamedTuple):
    """A reward term's value before and after its weight."""

    raw: float
    weighted: float


def _weighted(rewards: dict[str, Reward]) -> float:
    return sum(reward.weighted for reward in rewards.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
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
    rewards: dict[str, Reward] = field(default_factory=dict)

    @property
    def terminal_reward(self) -> float:
        """The weighted terms that judge the whole trajectory, added up."""
        return _weighted(self.rewards)

    @property
    def reward(self) -> float:
        """What groups compare: the terminal reward, and the mean of the turns' own.

        It is exact before it is rounded, so that equal rewards tie whatever their number.
        """
        terminal = self.terminal_reward
        return mean(sample.reward + terminal for sample in self.samples)

    @property
    def version(self) -> int:
        """The oldest version that sampled any of it."""
        return min(sample.version for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories whose advantages are computed together, all of one `group_id`."""

    trajectories: tuple[Trajectory, ...]

    @property
    def num_samples(self) -> int:
        """Samples of all its trajectories."""
        return sum(len(trajectory.samples) for trajectory in self.trajectories)

    @property
    def version(self) -> int:
        """The oldest version that sampled any of it."""
        return min(trajectory.version for trajectory in self.trajectories)

    @property
    def tied(self) -> bool:
        """Whether every trajectory earned the same: comparing them, nothing is learned."""
        return len({trajectory.reward for trajectory in self.trajectories}) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole groups, oldest first, drawn for an update of version `version` into `version + 1`."""

    version: int
    groups: tuple[Group, ...]

    @property
    def trajectories(self) -> list[Trajectory]:
        """Those of all groups, in order."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def samples(self) -> list[Sample]:
        """Those of all trajectories, in order."""
        return [sample for trajectory in self.trajectories for sample in trajectory.samples]

    def staleness(self, sample: Sample) -> int:
        """Versions between the one that sampled and the one that is updated."""
        return self.version - sample.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What came of an update; `advantages` in the order of the batch's samples."""

    version: int  # that this update made
    metrics: dict[str, float | None]  # names that begin with learn/
    advantages: list[float]
    refusals: list[str] = field(default_factory=list)  # why, for each step that was not made
