"""The policy that a run began with, kept as a copy of its LoRA: what a KL refers to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Reference:
    """A frozen copy of the trained parameters as they are now.

    With a warm start this is the start and not the bare base model, which switching the LoRA off
    would give. Values are copied in and out, so neither PEFT's state nor the optimizer notices.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.start = [parameter.detach().clone() for parameter in parameters]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The policy is the start; afterwards, whatever happens, bit by bit what it was."""
        trained = [parameter.detach().clone() for parameter in self.parameters]
        self._set(self.start)
        try:
            yield
        finally:
            self._set(trained)

    def state_dict(self) -> list[Tensor]:
        """The start, which a later version cannot tell."""
        return self.start

    def load_state_dict(self, state: list[Tensor]) -> None:
        """Restore what `state_dict` gave."""
        for start, saved in zip(self.start, state, strict=True):
            start.copy_(saved)

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)
