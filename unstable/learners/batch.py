"""A batch as columns, and the examples that an algorithm makes of it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import mean
from typing import Self

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
        # Index of each sample's trajectory.
        self.trajectories_S: Ints = np.repeat(np.arange(len(self.lengths_T)), self.lengths_T)

    @cached_property
    def token_samples(self) -> list[TokenSample]:
        """Token ids and log-probabilities of each sample."""
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
    def behavior_logprobs(self) -> list[Tensor]:
        """The engine's log-probabilities of each sample's tokens."""
        sampled = [sample.tokens.logprobs for sample in self.samples]
        joined = torch.tensor(list(chain.from_iterable(sampled)), dtype=torch.float32)
        return list(joined.split(list(map(len, sampled))))

    @cached_property
    def rewards_S(self) -> Floats:
        """Rewards of turns for comparisons: a turn's own plus its trajectory's terminal reward."""
        return np.array(
            [
                sample.reward + trajectory.terminal_reward
                for trajectory in self.trajectories
                for sample in trajectory.samples
            ]
        )

    @cached_property
    def turn_rewards_S(self) -> Floats:
        """Rewards of turns for returns: the last turn gets the terminal reward."""
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
        # Exact means, rounded once: trajectories with equal rewards tie at any length.
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
    # Equal values, such as outcomes, need no exact fractions, which are slow.
    return values[0] if min(values) == max(values) else mean(values)


def role_suffix(role: Role) -> str:
    """Return the suffix of a role's metric names. role_suffix(("Nim-v0", 1)) is '/Nim-v0/1'"""
    return metric_name("", *role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """S answers that the policy is trained on; optimizer steps shuffle them.

    For most algorithms they are the batch's turns as sampled. An algorithm that learns from pairs
    of answers, or from answers that nobody sampled, makes its own (`Algorithm.examples`).
    """

    samples: Sequence[TokenSample]
    roles_S: Sequence[Role]
    sequences_S: Ints  # index of each sample's trajectory or pair
    advantages_S: Floats
    weights_S: Floats  # gradient weights
    counts_S: Floats  # number of turns that each counts as
    enumerated_S: Mask  # True: listed exhaustively, such as legal moves, not sampled
    chosen: Ints  # indices of the samples that optimizer steps use
    behavior: Sequence[Tensor] | None  # logprobs at sampling; None: not sampled

    @classmethod
    def turns(cls, batch: FlatBatch, advantages_S: Floats, weights_S: Floats, chosen: Ints) -> Self:
        """Take the turns of a batch."""
        return cls(
            samples=batch.token_samples,
            roles_S=batch.roles_S,
            sequences_S=batch.trajectories_S,
            advantages_S=advantages_S,
            weights_S=weights_S,
            counts_S=np.ones(len(weights_S)),
            enumerated_S=np.zeros(len(weights_S), bool),
            chosen=chosen,
            behavior=batch.behavior_logprobs,
        )

    @classmethod
    def made(
        cls,
        samples: Sequence[TokenSample],
        roles_S: Sequence[Role],
        sequences_S: Sequence[int],
        advantages_S: Sequence[float],
    ) -> Self:
        """Wrap answers that an algorithm has made; all are trained on with weight 1."""
        count = len(samples)
        return cls(
            samples=samples,
            roles_S=roles_S,
            sequences_S=np.array(sequences_S, np.int64),
            advantages_S=np.array(advantages_S, np.float64),
            weights_S=np.ones(count),
            counts_S=np.ones(count),
            enumerated_S=np.zeros(count, bool),
            chosen=np.arange(count),
            behavior=None,
        )
