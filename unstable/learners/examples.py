"""What the optimizer steps of an update are made of: answers, and what is known of each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from torch import Tensor

from unstable.learners.advantages import spread_weights
from unstable.learners.batch import FlatBatch, Floats, Ints, Role
from unstable.types import TokenSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """S answers that the policy is trained on, in an order that optimizer steps do not keep.

    Of most algorithms they are a batch's turns as they were sampled. An algorithm that learns from
    pairs of answers, or from answers that nobody sampled, makes its own (`Algorithm.examples`).
    """

    samples: Sequence[TokenSample]
    roles_S: Sequence[Role]
    sequences_S: Ints  # number of the trajectory, or the pair, that each belongs to
    advantages_S: Floats
    weights_S: Floats  # of the gradient, in [0, 1]
    chosen: Ints  # indices of those that steps are made of
    behaviour: Sequence[Tensor] | None  # logprobs that they were sampled with; None: they were not

    @classmethod
    def turns(cls, batch: FlatBatch, advantages_S: Floats, weights_S: Floats, chosen: Ints) -> Self:
        """A batch's turns."""
        return cls(
            samples=batch.token_samples,
            roles_S=batch.roles_S,
            sequences_S=batch.trajectories_S,
            advantages_S=advantages_S,
            weights_S=weights_S,
            chosen=chosen,
            behaviour=batch.behaviour_logprobs,
        )

    def spread(self, batch: FlatBatch) -> Self:
        """The same, weighted by how far the rewards of their env spread in the batch."""
        spread = spread_weights(batch.rewards_S, batch.roles_S)
        return replace(self, weights_S=self.weights_S * [spread[env] for env, _ in self.roles_S])

    @classmethod
    def made(
        cls,
        samples: Sequence[TokenSample],
        roles_S: Sequence[Role],
        sequences_S: Sequence[int],
        advantages_S: Sequence[float],
    ) -> Self:
        """Answers that an algorithm has put together, all of them trained on in full."""
        count = len(samples)
        return cls(
            samples=samples,
            roles_S=roles_S,
            sequences_S=np.array(sequences_S, np.int64),
            advantages_S=np.array(advantages_S, np.float64),
            weights_S=np.ones(count),
            chosen=np.arange(count),
            behaviour=None,
        )
