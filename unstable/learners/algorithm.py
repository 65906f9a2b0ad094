"""What an algorithm is to the learner, which owns everything that algorithms have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from unstable.learners.advantages import Floats
from unstable.types import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One optimizer step, told token by token so that means are over tokens, never over means."""

    loss: float
    grad_norm: float | None  # None: the step was refused
    learning_rate: float
    logprobs_N: Tensor
    behaviour_logprobs_N: Tensor
    ratios_N: Tensor  # importance ratios before the cap
    entropies_N: Tensor


class Algorithm(Protocol):
    """One file an algorithm: pure advantages, a pure loss, and the optimizer step between them."""

    def advantages(self, samples: Sequence[Sample]) -> Floats:
        """One advantage per sample, of whole groups, before any shuffle."""

    def step(self, samples: Sequence[Sample], advantages_S: Floats) -> StepReport:
        """One optimizer step on all of the samples."""

    def metrics(self) -> dict[str, float | None]:
        """The algorithm's own, with names that begin with learn/."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs, besides the policy and the optimizer."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
