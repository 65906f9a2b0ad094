"""Other policies that a divergence refers to: a reference, which may move, and a teacher."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from unstable.config import AlgorithmConfig, Divergence, TeacherConfig
from unstable.learners.batch import Ints
from unstable.learners.columns import Layout
from unstable.learners.model.head import Head
from unstable.learners.model.logprobs import DivergenceTarget
from unstable.learners.model.policy import Policy
from unstable.learners.model.trained import TrainedCopy
from unstable.learners.scoring import Scorer
from unstable.models.adapters import read_adapter
from unstable.types import TokenSample


class PolicyReading(NamedTuple):
    """Another policy's scores of samples, on the CPU; zeros for samples that were not scored."""

    logprobs: list[Tensor]  # [T]
    states: list[Tensor] | None  # [T, D], for an exact divergence
    head: Head | None = None  # a copy of its head, if heads are trained


class OtherPolicy(TrainedCopy):
    """Another policy of the same base and shape: at construction, the one that is trained."""

    name: ClassVar[str]
    divergence: Divergence = "reverse"
    beta = 0.5

    def __init__(self, policy: Policy, scorer: Scorer, *, reads_states: bool) -> None:
        super().__init__(policy.trained)
        self._policy = policy
        self._reads_states = reads_states
        self._scorer = scorer

    def read(self, samples: Sequence[TokenSample], wanted: Ints | None = None) -> PolicyReading:
        """Score the samples, all or those of the wanted indices, in one pass."""
        indices = (np.arange(len(samples)) if wanted is None else wanted).tolist()
        chosen = [samples[index] for index in indices]
        logprobs = [torch.zeros(sample.num_scored) for sample in samples]
        states: list[Tensor] | None = None
        head: Head | None = None
        if not chosen:
            return PolicyReading(logprobs, states)
        with self.in_place():
            if self._reads_states:
                head = self._policy.head_apart()
                scored, found = self._scorer.logprobs_and_states(chosen)
                states = [each.new_zeros(len(each), found[0].shape[1]) for each in logprobs]
                for index, states_TD in zip(indices, found, strict=True):
                    states[index] = states_TD
            else:
                scored = self._scorer.logprobs(chosen)
        for index, logprobs_T in zip(indices, scored, strict=True):
            logprobs[index] = logprobs_T
        return PolicyReading(logprobs, states, head)

    def aims(self, reading: PolicyReading, layout: Layout) -> dict[str, DivergenceTarget]:
        """Return its readings as divergence targets by name; empty without hidden states."""
        states_ND = layout.joined(reading.states)
        if states_ND is None:
            return {}
        return {self.name: DivergenceTarget(states_ND, self.divergence, self.beta, reading.head)}


class Reference(OtherPolicy):
    """The policy at construction; it stays that, or follows the one that is trained."""

    name = "reference"

    def __init__(self, policy: Policy, config: AlgorithmConfig, scorer: Scorer) -> None:
        super().__init__(policy, scorer, reads_states=config.uses_exact_kl)
        self._config = config.reference

    def after_update(self, updates: int) -> None:
        """Follow the policy if the config's interval is reached after this number of updates."""
        if self._config.ema is not None:
            self.follow(self._config.ema)
        elif self._config.every is not None and updates % self._config.every == 0:
            self.follow(0.0)


class Teacher(OtherPolicy):
    """The policy that an adapter makes of the base; raises `ConfigError` where it does not fit."""

    name = "teacher"

    def __init__(self, policy: Policy, config: TeacherConfig, scorer: Scorer) -> None:
        assert config.folder is not None
        super().__init__(policy, scorer, reads_states=True)
        self.divergence, self.beta = config.divergence, config.beta
        self.load(read_adapter(config.folder, "teacher"))


class OtherPolicies(NamedTuple):
    """The other policies that an algorithm refers to."""

    reference: Reference | None
    teacher: Teacher | None

    @classmethod
    def of(cls, policy: Policy, config: AlgorithmConfig, scorer: Scorer) -> Self:
        """Return the policies that the config uses, at their start."""
        return cls(
            reference=Reference(policy, config, scorer) if config.uses_reference else None,
            teacher=Teacher(policy, config.teacher, scorer) if config.uses_teacher else None,
        )

    def columns(
        self,
        samples: Sequence[TokenSample],
        wanted: Ints,
        reading: PolicyReading | None,
        layout: Layout,
    ) -> tuple[Tensor | None, dict[str, DivergenceTarget]]:
        """The reference's logprobs [N], and the targets of exact divergences; scores the teacher.

        `reading` is the reference's reading of the samples, if any.
        """
        aims: dict[str, DivergenceTarget] = {}
        if self.reference is not None and reading is not None:
            aims |= self.reference.aims(reading, layout)
        if self.teacher is not None:
            aims |= self.teacher.aims(self.teacher.read(samples, wanted), layout)
        return layout.joined(None if reading is None else reading.logprobs), aims
