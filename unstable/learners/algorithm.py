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

    logprobs_N: Tensor  # the only logprobs with a gradient
    old_logprobs_N: Tensor  # of the policy that the update began with
    behavior_logprobs_N: Tensor  # of the engine that sampled
    reference_logprobs_N: Tensor | None  # of the reference; None: nothing refers to one
    advantages_N: Tensor
    normalizers_N: Tensor  # what a token's loss is divided by, over the whole optimizer step
    turns_N: Tensor  # index of the turn that each belongs to, from 0 in this micro-batch
    sequences_N: Tensor  # index of the trajectory, or the pair, likewise
    entropies_N: Tensor | None = None  # of the next word, with a gradient; None: not asked for
    divergences: Mapping[str, Tensor] = field(default_factory=dict)
    """Those [N] of the next word from the reference and the teacher, by their names, the same."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A micro-batch's share of the step's loss, and what the loss weighed each token by."""

    value: Tensor
    ratios_N: Tensor  # before any clip
    means: Mapping[str, Tensor] = field(default_factory=dict)  # metrics: [N], logged as token means
    turn_means: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # alike in a turn: means of turns


class Algorithm:
    """One file an algorithm: `advantages` and `loss`, which a subclass writes, and a few switches.

    `config` is its section. With a critic in it, advantages are the critic's.
    """

    uses_old_logprobs = True  # else no pass is spent on them
    uses_log_ratios = False  # whether `refer` is called, which needs the reference

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        """One advantage per sample, of rewards that bounds and KL have shaped."""
        raise NotImplementedError

    def loss(self, tokens: Tokens) -> Loss:
        """The micro-batch's share of the step's loss, without KL and entropy."""
        raise NotImplementedError

    def trained(self, batch: FlatBatch, advantages_S: Floats) -> Mask:
        """The samples that optimizer steps are made out of; by default all."""
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
        """Take in how much likelier each answer that is trained on is than to the reference.

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
        """The algorithm's own, with names that begin with learn/."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs of it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""


class Imitation(Algorithm):
    """Maximum likelihood of the tokens; ignores advantages."""

    uses_old_logprobs = False

    def loss(self, tokens: Tokens) -> Loss:
        value = likelihood_loss(tokens.logprobs_N, normalizer=tokens.normalizers_N)
        return Loss(value, torch.ones_like(tokens.logprobs_N))
