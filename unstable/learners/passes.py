"""What the passes of an optimizer step read, on the device before they begin."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.learners.batch import Ints
from unstable.learners.columns import Layout
from unstable.learners.frozen import FrozenBatch
from unstable.learners.micro_batches import MicroBatch, token_normalizers
from unstable.learners.model.packing import sent
from unstable.learners.model.policy import Inputs, Policy


class Pass(NamedTuple):
    """A micro-batch with N scored tokens; tensors lie on the policy's device."""

    chosen: Ints  # indices of its samples in the batch
    counts: bool  # else it is a repeat of no weight
    inputs: Inputs
    rows_N: Tensor  # of its tokens in the batch's columns
    places_N: Tensor  # and in the step's
    normalizers_N: Tensor
    sequences_N: Tensor  # index of each token's trajectory, from 0


class Passes:
    """Makes the passes of a step on the chosen samples, whose tokens have a `layout`."""

    def __init__(
        self, frozen: FrozenBatch, chosen_C: Ints, layout: Layout, max_tokens: int, policy: Policy
    ) -> None:
        self._policy = policy
        self._frozen, self._chosen_C, self._layout = frozen, chosen_C, layout
        self.samples = [frozen.samples[index] for index in chosen_C]
        _, self._sequences_C = np.unique(frozen.sequences_S[chosen_C], return_inverse=True)
        self._normalizers_C = token_normalizers(
            np.array(layout.sizes), self._sequences_C, frozen.algorithm.aggregation, max_tokens
        )

    @property
    def atoms(self) -> list[int] | None:
        """What a pass holds as a whole; None: each sample for itself."""
        return self._sequences_C.tolist() if self._frozen.algorithm.whole_in_pass else None

    def make(self, micro_batch: MicroBatch) -> Pass:
        """The pass of a micro-batch. It changes nothing, so that a thread may make it ahead."""
        indices, counts = micro_batch
        device = self._layout.device
        inputs = self._policy.inputs([self.samples[index] for index in indices])
        owners_N = self._sequences_C[indices][inputs.samples_N.numpy()]
        sequences_N = torch.from_numpy(np.unique(owners_N, return_inverse=True)[1])
        normalizers_S = torch.from_numpy(self._normalizers_C[indices]).float()
        return Pass(
            chosen=self._chosen_C[indices],
            counts=counts,
            inputs=inputs.to(device),
            rows_N=self._frozen.layout.rows(self._chosen_C[indices]),
            places_N=self._layout.rows(indices),
            normalizers_N=sent(normalizers_S[inputs.samples_N], device),
            sequences_N=sent(sequences_N, device),
        )
