"""The reference: the policy that a KL refers to, and how it follows the one that is trained."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unstable.config import AlgorithmConfig
from unstable.learners.columns import Layout
from unstable.learners.model.policy import Policy
from unstable.learners.model.second_lora import SecondLoRA
from unstable.learners.scoring import Scorer
from unstable.types import TokenSample


class Reading(NamedTuple):
    """What the reference says of samples, on the CPU; zeros for those that were not wanted."""

    logprobs: list[Tensor]  # [T]
    states: list[Tensor] | None  # [T, D], for an exact KL

    def columns(self, layout: Layout) -> dict[str, Tensor]:
        """What a frozen batch keeps of it: for an exact KL the states, else the logprobs."""
        if self.states is None:
            return {"reference_logprobs_N": layout.joined(self.logprobs)}
        return {"reference_ND": layout.joined(self.states)}


class Reference(SecondLoRA):
    """The policy at construction; it stays that, or follows the one that is trained."""

    def __init__(self, policy: Policy, config: AlgorithmConfig, scorer: Scorer) -> None:
        super().__init__(policy)
        self._config = config.reference
        self._reads_states = config.uses_exact_kl
        self._scorer = scorer

    def read(self, samples: Sequence[TokenSample], wanted: Iterable[int] | None = None) -> Reading:
        """Score the samples, all or those at the wanted places, in one pass."""
        places = list(range(len(samples)) if wanted is None else wanted)
        chosen = [samples[place] for place in places]
        logprobs = [torch.zeros(sample.num_scored) for sample in samples]
        states: list[Tensor] | None = None
        if not chosen:
            return Reading(logprobs, states)
        with self.in_place():
            if self._reads_states:
                scored, found = self._scorer.logprobs_and_states(chosen)
                states = [each.new_zeros(len(each), found[0].shape[1]) for each in logprobs]
                for place, states_TD in zip(places, found, strict=True):
                    states[place] = states_TD
            else:
                scored = self._scorer.logprobs(chosen)
        for place, logprobs_T in zip(places, scored, strict=True):
            logprobs[place] = logprobs_T
        return Reading(logprobs, states)

    def after_update(self, version: int) -> None:
        """Move, if it is time to: the policy has just become `version`."""
        if self._config.mean is not None:
            self.follow(self._config.mean)
        elif self._config.every is not None and version % self._config.every == 0:
            self.follow(0.0)
