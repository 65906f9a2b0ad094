"""The reference: the policy that a KL refers to, and how it follows the one that is trained."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.config import AlgorithmConfig
from unstable.learners.batch import Ints
from unstable.learners.model.policy import Policy
from unstable.learners.model.trained import TrainedCopy
from unstable.learners.scoring import Scorer
from unstable.types import TokenSample


class Reading(NamedTuple):
    """What the reference says of samples, on the CPU; zeros for those that were not wanted."""

    logprobs: list[Tensor]  # [T]
    states: list[Tensor] | None  # [T, D], for an exact KL


class Reference(TrainedCopy):
    """The policy at construction; it stays that, or follows the one that is trained."""

    def __init__(self, policy: Policy, config: AlgorithmConfig, scorer: Scorer) -> None:
        super().__init__(policy.trained)
        self._config = config.reference
        self._reads_states = config.uses_exact_kl
        self._scorer = scorer

    def read(self, samples: Sequence[TokenSample], wanted: Ints | None = None) -> Reading:
        """Score the samples, all or those of the wanted indices, in one pass."""
        indices = (np.arange(len(samples)) if wanted is None else wanted).tolist()
        chosen = [samples[index] for index in indices]
        logprobs = [torch.zeros(sample.num_scored) for sample in samples]
        states: list[Tensor] | None = None
        if not chosen:
            return Reading(logprobs, states)
        with self.in_place():
            if self._reads_states:
                scored, found = self._scorer.logprobs_and_states(chosen)
                states = [each.new_zeros(len(each), found[0].shape[1]) for each in logprobs]
                for index, states_TD in zip(indices, found, strict=True):
                    states[index] = states_TD
            else:
                scored = self._scorer.logprobs(chosen)
        for index, logprobs_T in zip(indices, scored, strict=True):
            logprobs[index] = logprobs_T
        return Reading(logprobs, states)

    def after_update(self, updates: int) -> None:
        """Move, if it is time to: so many updates have been made."""
        if self._config.ema is not None:
            self.follow(self._config.ema)
        elif self._config.every is not None and updates % self._config.every == 0:
            self.follow(0.0)
