"""What an algorithm is to the learner, which owns everything that algorithms have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from unstable.learners.advantages import Floats
from unstable.types import Sample


class Judgement(NamedTuple):
    """What turns [S] are worth."""

    advantages_S: Floats
    values_S: Floats | None = None  # None: no critic
    targets_S: Floats | None = None  # what the critic learns


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A batch with all that is frozen before its first optimizer step; lists are by sample."""

    samples: Sequence[Sample]
    rewards_S: Floats  # as shaped by bounds and KL
    advantages_S: Floats
    units: list[NDArray]  # indices of samples that optimizer steps keep whole; none: no step
    values_S: Floats | None = None  # of the critic, None without one, and what it is to learn
    targets_S: Floats | None = None
    old_logprobs: list[Tensor] | None = None  # None: the one step's own are the old ones
    reference_logprobs: list[Tensor] | None = None  # None: no KL is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The N sampled tokens of a mini-batch, as a loss sees them."""

    logprobs_N: Tensor  # the only logprobs with a gradient
    old_logprobs_N: Tensor  # of the policy that the update began with
    behaviour_logprobs_N: Tensor  # of the engine that sampled
    reference_logprobs_N: Tensor | None  # of the policy that the run began with
    advantages_N: Tensor
    normalizers_N: Tensor  # what a token's loss is divided by, over the whole optimizer step
    turns_N: Tensor  # index of the turn that each belongs to, from 0 in this mini-batch
    sequences_N: Tensor  # the same for trajectories
    samples: Sequence[Sample]  # the mini-batch's turns
    states_SD: Tensor  # last hidden state where each turn's prompt ends
    values_S: Tensor | None  # of the critic before the first step, and what it is to learn
    targets_S: Tensor | None
    num_turns: int  # in the whole optimizer step


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A mini-batch's share of the step's loss, and what the loss weighed each token by."""

    value: Tensor
    ratios_N: Tensor  # before any clip
    means: Mapping[str, Tensor] = field(default_factory=dict)  # metrics: [N], told as token means


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One optimizer step, told token by token so that means are over tokens, never over means."""

    samples: Sequence[Sample]  # whose tokens the columns [N] hold, in their order
    loss: float
    grad_norm: float | None  # None: the step was refused
    learning_rate: float
    logprobs_N: Tensor
    ratios_N: Tensor
    entropies_N: Tensor
    means: Mapping[str, Tensor]

    @property
    def behaviour_logprobs_N(self) -> Tensor:
        """Of the engine that sampled, which every rank knows."""
        return torch.tensor([p for sample in self.samples for p in sample.logprobs])


class Algorithm(Protocol):
    """One file an algorithm: pure advantages, a pure loss, and the optimizer step between them."""

    def prepare(self, samples: Sequence[Sample]) -> Prepared:
        """Advantages of whole groups, before any shuffle, and all else that steps keep frozen."""

    def step(self, prepared: Prepared, chosen: NDArray) -> StepReport:
        """One optimizer step on the chosen samples."""

    def logprobs(self, samples: Sequence[Sample]) -> list[Tensor]:
        """Of the samples' tokens under the policy as it is, by sample, on the CPU."""

    def metrics(self) -> dict[str, float | None]:
        """The algorithm's own, with names that begin with learn/."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs, besides the policy and the optimizer."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
