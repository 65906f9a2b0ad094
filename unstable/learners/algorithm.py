"""The interface between an algorithm and the learner.

An algorithm defines the advantage of each sample and the loss of its tokens. The learner owns
everything else: forward passes, micro-batches, ranks, KL, critic and optimizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import Aggregation, AlgorithmConfig
from unstable.learners.batch import Examples, FlatBatch, Floats, Mask
from unstable.learners.losses import likelihood_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The N sampled tokens of a micro-batch, as a loss sees them."""

    logprobs_N: Tensor  # of the current policy; the only ones with a gradient
    old_logprobs_N: Tensor  # of the policy before the update
    behavior_logprobs_N: Tensor  # of the engine, at sampling
    reference_logprobs_N: Tensor | None  # None: no term uses the reference
    advantages_N: Tensor
    normalizers_N: Tensor  # divisors of the token losses, over the whole optimizer step
    turns_N: Tensor  # index of each token's turn, from 0 in this micro-batch
    sequences_N: Tensor  # index of each token's trajectory or pair, from 0
    enumerated_N: Tensor  # True: of an answer that was not sampled, such as each legal move
    entropies_N: Tensor | None = None  # of the next token, with a gradient; None: unused
    divergences: Mapping[str, Tensor] = field(default_factory=dict)
    """Exact divergences [N] from `reference` and `teacher`, by these names, with a gradient."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A micro-batch's share of the step's loss, with the ratio of each token."""

    value: Tensor
    ratios_N: Tensor  # before clipping
    means: Mapping[str, Tensor] = field(default_factory=dict)  # metrics [N], averaged over tokens
    turn_means: Mapping[str, Tensor] = field(default_factory=dict)  # averaged over turns


class Algorithm:
    """Base class: a subclass defines `advantages` and `loss`, and sets a few switches.

    `config` is its section. With a critic in it, the critic computes the advantages.
    """

    uses_old_logprobs = True  # False: they are not computed
    uses_log_ratios = False  # True: `refer` is called; needs the reference

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        """Compute one advantage per sample, from rewards after clipping and KL."""
        raise NotImplementedError

    def loss(self, tokens: Tokens) -> Loss:
        """The micro-batch's share of the step's loss, without KL and entropy."""
        raise NotImplementedError

    def trained(self, batch: FlatBatch, advantages_S: Floats) -> Mask:
        """Return which samples optimizer steps use; by default all."""
        return np.ones(len(batch.samples), dtype=bool)

    def weights(self, batch: FlatBatch) -> Floats:
        """Return the weight of each sample's gradient, in [0, 1]; rewards keep their weight.

        By default `truncated_weight` for truncated samples, else 1.
        """
        cut_S = [sample.tokens.finish_reason == "length" for sample in batch.samples]
        return np.where(cut_S, self.config.truncated_weight, 1.0)

    def examples(self, batch: FlatBatch, advantages_S: Floats) -> Examples:
        """Return the examples to train on; by default the batch's `trained` turns.

        Turns of weight 0 are left out, so that means cover the trained turns alone.
        """
        weights_S = self.weights(batch)
        chosen = np.flatnonzero(self.trained(batch, advantages_S) & (weights_S > 0))
        return Examples.turns(batch, advantages_S, weights_S, chosen)

    def refer(self, log_ratios_P: Floats) -> None:
        """Receive the log-ratio of each trained answer, policy over reference.

        In nats, before the first step; by the old policy (see `old_logprobs`).
        """

    @property
    def aggregation(self) -> Aggregation:
        """The unit that the loss averages over."""
        return "token"

    @property
    def whole_in_step(self) -> bool:
        """True if an optimizer step holds all turns of a trajectory (or of a pair) or none."""
        return False

    @property
    def whole_in_pass(self) -> bool:
        """True if a micro-batch holds whole trajectories: a token's loss depends on all turns."""
        return False

    def metrics(self) -> dict[str, float | None]:
        """Return the algorithm's own metrics; their names start with learn/."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""


class Imitation(Algorithm):
    """Maximum likelihood of the tokens; ignores advantages."""

    uses_old_logprobs = False

    def loss(self, tokens: Tokens) -> Loss:
        value = likelihood_loss(tokens.logprobs_N, normalizer=tokens.normalizers_N)
        return Loss(value, torch.ones_like(tokens.logprobs_N))
