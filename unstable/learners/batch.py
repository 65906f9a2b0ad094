"""A batch as columns: its samples in a row, with what each one's trajectory says of it."""

from collections import defaultdict
from functools import cached_property
from itertools import chain
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstable.types import Batch, Sample, TokenSample, Trajectory
from unstable.types.metrics import metric_name

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Role = tuple[str, int]
"""An env and a seat in it."""


class FlatBatch:
    """S samples of T trajectories, in the batch's order."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.trajectories: list[Trajectory] = batch.trajectories
        self.samples: list[Sample] = batch.samples
        self.lengths_T = [len(trajectory.samples) for trajectory in self.trajectories]
        # Index of the trajectory that each sample belongs to.
        self.trajectories_S: Ints = np.repeat(np.arange(len(self.lengths_T)), self.lengths_T)

    @cached_property
    def token_samples(self) -> list[TokenSample]:
        """What the model is scored on, by sample."""
        return [sample.tokens for sample in self.samples]

    @cached_property
    def groups_T(self) -> list[int]:
        """The group of each trajectory."""
        return [trajectory.group_id for trajectory in self.trajectories]

    @cached_property
    def envs_T(self) -> list[str]:
        """The env of each trajectory."""
        return [trajectory.env for trajectory in self.trajectories]

    @cached_property
    def roles_T(self) -> list[Role]:
        """The env and seat of each trajectory."""
        return [(trajectory.env, trajectory.seat) for trajectory in self.trajectories]

    @cached_property
    def owners_S(self) -> list[Trajectory]:
        """The trajectory of each sample."""
        return [self.trajectories[index] for index in self.trajectories_S.tolist()]

    @cached_property
    def envs_S(self) -> list[str]:
        """The env of each sample."""
        return [owner.env for owner in self.owners_S]

    @cached_property
    def roles_S(self) -> list[Role]:
        """The env and seat of each sample."""
        return [(owner.env, owner.seat) for owner in self.owners_S]

    @cached_property
    def behaviour_logprobs(self) -> list[Tensor]:
        """Of each sample's tokens, as the engine had them."""
        sampled = [sample.tokens.logprobs for sample in self.samples]
        joined = torch.tensor(list(chain.from_iterable(sampled)), dtype=torch.float32)
        return list(joined.split(list(map(len, sampled))))

    @cached_property
    def rewards_S(self) -> Floats:
        """Each turn's reward as it is compared: its own, and what its whole trajectory earned."""
        return np.array(
            [
                sample.reward + trajectory.terminal_reward
                for trajectory in self.trajectories
                for sample in trajectory.samples
            ]
        )

    @cached_property
    def turn_rewards_S(self) -> Floats:
        """Each turn's reward as it is added up to a return: the trajectory's is paid at its end."""
        return np.array(
            [
                sample.reward
                + (trajectory.terminal_reward if sample is trajectory.samples[-1] else 0.0)
                for trajectory in self.trajectories
                for sample in trajectory.samples
            ]
        )

    def mean_T(self, values_S: Floats) -> Floats:
        """Means of samples' values by trajectory.

        The mean over turns, not the sum: what a whole trajectory earned is in the reward of each of
        its turns, and a sum would count it once for each.
        """
        values = values_S.tolist()
        ends = np.cumsum(self.lengths_T).tolist()
        # Exact before it is rounded, so that trajectories of equal rewards tie whatever their
        # length.
        return np.array(
            [_mean(values[end - n : end]) for end, n in zip(ends, self.lengths_T, strict=True)]
        )

    def by_role(self) -> dict[Role, Ints]:
        """Indices of the samples of each role, in the order of the roles."""
        indices: dict[Role, list[int]] = defaultdict(list)
        for index, role in enumerate(self.roles_S):
            indices[role].append(index)
        return {role: np.array(found) for role, found in sorted(indices.items())}


def _mean(values: list[float]) -> float:
    # Of equal values, as outcomes are, without the exact fractions that others need.
    return values[0] if min(values) == max(values) else mean(values)


def role_suffix(role: Role) -> str:
    """What ends the name of a metric of one role. role_suffix(("Nim-v0", 1)) is '/Nim-v0/1'"""
    return metric_name("", *role)
