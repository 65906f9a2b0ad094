"""A batch as its optimizer steps see it: columns of tokens that stay as they are meanwhile."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from unstable.learners.algorithm import Algorithm, Tokens
from unstable.learners.batch import Floats, Ints
from unstable.learners.columns import Layout
from unstable.learners.examples import Examples
from unstable.learners.model.logprobs import Aim
from unstable.learners.model.policy import Scores
from unstable.learners.regularization import Coefficients
from unstable.types import TokenSample


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenBatch:
    """S samples with N scored tokens, in order; tensors lie on the policy's device."""

    samples: Sequence[TokenSample]
    algorithm: Algorithm
    coefficients: Coefficients
    layout: Layout  # of the columns [N]
    sequences_S: Ints  # number of the trajectory, or the pair, that each belongs to
    atoms: Sequence[Ints]  # indices of samples that an optimizer step keeps together; none: no step
    advantages_N: Tensor
    weights_N: Tensor | None = None  # of tokens' gradients, in [0, 1]; None: all are 1
    behaviour_logprobs_N: Tensor | None = None  # None: the policy's own
    old_logprobs_N: Tensor | None = None  # None: the policy's own, as the only step has them
    first_logprobs_N: Tensor | None = None  # the policy's before the first step; None: the old ones
    reference_logprobs_N: Tensor | None = None  # None: no KL is asked for
    aims: Mapping[str, Aim] = field(default_factory=dict)  # what exact divergences are from
    targets_S: Tensor | None = None  # what the critic is to learn; None without one

    @property
    def entropy(self) -> bool:
        """Whether the loss has the entropies."""
        return self.algorithm.config.entropy > 0

    def aims_at(self, rows: Tensor) -> dict[str, Aim]:
        """The aims of these rows."""
        return {name: aim.rows(rows) for name, aim in self.aims.items()}

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
        divergences = scores.divergences
        if self.weights_N is not None:
            weights_N = self.weights_N[rows]
            logprobs_N = torch.where(weights_N == 0, old_N, weighted(logprobs_N, weights_N))
            entropies_N = None if entropies_N is None else weighted(entropies_N, weights_N)
            divergences = {
                name: weighted(each_N, weights_N) for name, each_N in divergences.items()
            }
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
            divergences=divergences,
        )


def _rows(column_N: Tensor | None, rows: Tensor, own_N: Tensor) -> Tensor:
    return own_N if column_N is None else column_N[rows]


def weighted(values_N: Tensor, weights_N: Tensor) -> Tensor:
    """The values [N] as they are, with their gradient times a weight."""
    return weights_N * values_N + (1 - weights_N) * values_N.detach()


def minibatch_atoms(examples: Examples, algorithm: Algorithm) -> list[Ints]:
    """Indices of the examples that are trained on, an array for what a step keeps together.

    These are single ones or, where the algorithm asks for it, whole sequences; of them the
    `top_advantage_fraction`.
    """
    indices, advantages_S = examples.chosen, examples.advantages_S
    keys = examples.sequences_S[indices] if algorithm.whole_in_step else indices
    order = np.argsort(keys, kind="stable")
    _, firsts = np.unique(keys[order], return_index=True)
    atoms = np.split(indices[order], firsts[1:]) if len(indices) else []
    share = algorithm.config.top_advantage_fraction
    return atoms if share == 1 else top_advantage_atoms(atoms, advantages_S, share)


def top_advantage_atoms(atoms: Sequence[Ints], advantages_S: Floats, share: float) -> list[Ints]:
    """The `share` of the atoms, rounded up, whose mean |advantage| is largest, in their order.

    Of equal ones the first are kept.
    """
    sizes = np.array([np.abs(advantages_S[atom]).mean() for atom in atoms])
    kept = np.argsort(-sizes, kind="stable")[: math.ceil(share * len(atoms))]
    return [atoms[index] for index in sorted(kept)]
