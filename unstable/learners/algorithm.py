"""What an algorithm is to the learner, which owns all that algorithms have in common.

An algorithm says what each sample is worth and what the loss of its tokens is. Forward passes,
micro-batches, ranks, the KL, the critic and the optimizer are the learner's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstable.config import Aggregation, AlgorithmConfig
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.losses import kl_penalties, likelihood_loss

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The N sampled tokens of a micro-batch, as a loss sees them."""

    logprobs_N: Tensor  # the only logprobs with a gradient
    old_logprobs_N: Tensor  # of the policy that the update began with
    behaviour_logprobs_N: Tensor  # of the engine that sampled
    reference_logprobs_N: Tensor | None  # of the policy that the run began with
    advantages_N: Tensor
    normalizers_N: Tensor  # what a token's loss is divided by, over the whole optimizer step
    turns_N: Tensor  # index of the turn that each belongs to, from 0 in this micro-batch
    sequences_N: Tensor  # index of the trajectory, from 0 in the optimizer step


@dataclass(frozen=True, slots=True)
class Loss:
    """A micro-batch's share of the step's loss, and what the loss weighed each token by."""

    value: Tensor
    ratios_N: Tensor  # before any clip
    means: Mapping[str, Tensor] = field(default_factory=dict)  # metrics: [N], logged as token means


class Algorithm:
    """One file an algorithm: `advantages` and `loss`, which a subclass writes, and a few switches.

    `config` is its section. With a critic in it, advantages are the critic's.
    """

    uses_old_logprobs = True  # else no pass is spent on them

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        """One advantage per sample, of rewards that bounds and KL have shaped."""
        raise NotImplementedError

    def loss(self, tokens: Tokens) -> Loss:
        """The micro-batch's share of the step's loss, without the KL."""
        raise NotImplementedError

    def trained(self, batch: FlatBatch, advantages_S: Floats) -> Mask:
        """The samples that optimizer steps are made out of; by default all."""
        return np.ones(len(batch.samples), dtype=bool)

    def masked(self, batch: FlatBatch) -> Mask:
        """The samples that get no gradient, though their rewards count for the others."""
        return np.zeros(len(batch.samples), dtype=bool)

    @property
    def aggregation(self) -> Aggregation:
        """What the loss is a mean over."""
        return "token"

    @property
    def whole_in_step(self) -> bool:
        """Whether an optimizer step holds all turns of a trajectory or none."""
        return False

    @property
    def whole_in_pass(self) -> bool:
        """Whether a micro-batch does, as the loss of a token is made out of all of them."""
        return False

    def metrics(self) -> dict[str, float | None]:
        """The algorithm's own, with names that begin with learn/."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs of it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""


def imitation(tokens: Tokens) -> Loss:
    """Maximum likelihood, whatever a token is worth."""
    value = likelihood_loss(tokens.logprobs_N, normalizer=tokens.normalizers_N)
    return Loss(value, torch.ones_like(tokens.logprobs_N))


def with_kl(loss: Callable[[Tokens], Loss], weight: float) -> Callable[[Tokens], Loss]:
    """The loss plus `weight` times the KL to the reference."""

    def with_penalty(tokens: Tokens) -> Loss:
        assert tokens.reference_logprobs_N is not None
        plain = loss(tokens)
        kl_N = kl_penalties(tokens.logprobs_N, tokens.reference_logprobs_N)
        value = plain.value + weight * (kl_N / tokens.normalizers_N).sum()
        return Loss(value, plain.ratios_N, {**plain.means, "learn/kl_reference": kl_N})

    return with_penalty
