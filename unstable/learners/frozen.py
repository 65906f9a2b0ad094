"""A batch as its optimizer steps see it: columns of tokens that stay as they are meanwhile."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import Aggregation
from unstable.learners.algorithm import Loss, Mask, Tokens
from unstable.learners.batch import Floats, Ints
from unstable.learners.columns import Layout
from unstable.learners.model.policy import Scores
from unstable.types import TokenSample


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenBatch:
    """S samples with N scored tokens, in order; tensors lie on the policy's device."""

    samples: Sequence[TokenSample]
    layout: Layout  # of the columns [N]
    loss: Callable[[Tokens], Loss]
    aggregation: Aggregation  # what the loss is a mean over
    trajectories_S: Ints
    units: Sequence[Ints]  # places of samples that an optimizer step keeps together; none: no step
    whole_in_pass: bool = False  # whether a micro-batch keeps trajectories together
    entropy: bool = False  # whether the loss has the entropies
    advantages_N: Tensor
    weights_N: Tensor | None = None  # of tokens' gradients, in [0, 1]; None: all are 1
    behaviour_logprobs_N: Tensor | None = None  # None: the policy's own
    old_logprobs_N: Tensor | None = None  # None: the policy's own, as the only step has them
    reference_logprobs_N: Tensor | None = None  # None: no KL is asked for, or an exact one
    reference_ND: Tensor | None = None  # its hidden states, None: no exact KL is asked for
    values_S: Tensor | None = None  # of the critic, None without one, and what it is to learn
    targets_S: Tensor | None = None

    def forward_options(self, rows: Tensor) -> dict[str, Any]:
        """What the policy is asked for besides logprobs, of the tokens in these rows."""
        reference = self.reference_ND
        return {
            "entropy": self.entropy,
            "reference_ND": None if reference is None else reference[rows],
        }

    def tokens(
        self,
        rows: Tensor,
        scores: Scores,
        *,
        normalizers_N: Tensor,
        turns_N: Tensor,
        sequences_N: Tensor,
    ) -> Tokens:
        """The scored tokens of these rows as a loss sees them.

        Where the weight is 0 a token is a constant and its ratio 1, whatever the loss.
        """
        own_N = scores.logprobs_N.detach()
        old_N = _rows(self.old_logprobs_N, rows, own_N)
        logprobs_N, entropies_N = scores.logprobs_N, scores.entropies_N if self.entropy else None
        kl_N = scores.kl_N
        if self.weights_N is not None:
            weights_N = self.weights_N[rows]
            logprobs_N = torch.where(weights_N == 0, old_N, weighted(logprobs_N, weights_N))
            entropies_N = None if entropies_N is None else weighted(entropies_N, weights_N)
            kl_N = None if kl_N is None else weighted(kl_N, weights_N)
        reference_N = self.reference_logprobs_N
        return Tokens(
            logprobs_N=logprobs_N,
            old_logprobs_N=old_N,
            behaviour_logprobs_N=_rows(self.behaviour_logprobs_N, rows, own_N),
            reference_logprobs_N=None if reference_N is None else reference_N[rows],
            advantages_N=self.advantages_N[rows],
            normalizers_N=normalizers_N,
            turns_N=turns_N,
            sequences_N=sequences_N,
            entropies_N=entropies_N,
            kl_N=kl_N,
        )


def _rows(column_N: Tensor | None, rows: Tensor, own_N: Tensor) -> Tensor:
    return own_N if column_N is None else column_N[rows]


def weighted(values_N: Tensor, weights_N: Tensor) -> Tensor:
    """The values [N] as they are, with their gradient times a weight."""
    return weights_N * values_N + (1 - weights_N) * values_N.detach()


def units_of(trajectories_S: Ints, trained_S: Mask, whole: bool) -> list[Ints]:
    """Places of the trained samples, one by one or, if `whole`, trajectory by trajectory."""
    places = np.flatnonzero(trained_S)
    keys = trajectories_S[places] if whole else places
    order = np.argsort(keys, kind="stable")
    _, firsts = np.unique(keys[order], return_index=True)
    return np.split(places[order], firsts[1:]) if len(places) else []


def top_advantage_units(units: Sequence[Ints], advantages_S: Floats, share: float) -> list[Ints]:
    """The `share` of the units, rounded up, whose mean |advantage| is largest, in their order.

    Of equal ones the first are kept.
    """
    sizes = np.array([np.abs(advantages_S[unit]).mean() for unit in units])
    kept = np.argsort(-sizes, kind="stable")[: math.ceil(share * len(units))]
    return [units[place] for place in sorted(kept)]
