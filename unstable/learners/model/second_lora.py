"""A second LoRA on the policy's model: what a KL refers to, a mean, a critic's own, a probe's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unstable.learners.model.policy import Policy


class SecondLoRA:
    """Parameters of the policy's shape, at first a copy of the policy's, that can take their place.

    As a reference this is where a run began: with a warm start not the bare base model, which
    switching the LoRA off would give.
    """

    def __init__(self, policy: Policy) -> None:
        self.places = [
            (module, name)
            for module in policy.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        ]
        self.replaced: list[nn.Parameter] = [getattr(*place) for place in self.places]
        self.parameters = [nn.Parameter(own.detach().clone()) for own in self.replaced]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has these parameters; afterwards, whatever happens, the policy's again.

        Parameters change places, not values, so neither the optimizer nor a backward of the policy
        that is still to come notices. A backward of what was computed in here belongs in here as
        well, since it may run layers again.
        """
        self._set(self.parameters)
        try:
            yield
        finally:
            self._set(self.replaced)

    @torch.no_grad()
    def follow(self, kept: float) -> None:
        """Become `kept` times these weights plus (1 - kept) times the policy's; 0: a copy."""
        for own, policys in zip(self.parameters, self.replaced, strict=True):
            own.lerp_(policys, 1 - kept)

    def _set(self, parameters: Sequence[nn.Parameter]) -> None:
        for (module, name), parameter in zip(self.places, parameters, strict=True):
            setattr(module, name, parameter)

    def state_dict(self) -> list[Tensor]:
        """The values, which cannot be derived from the policy once that has been trained."""
        return [parameter.detach() for parameter in self.parameters]

    @torch.no_grad()
    def load_state_dict(self, state: list[Tensor]) -> None:
        """Restore what `state_dict` gave."""
        for parameter, saved in zip(self.parameters, state, strict=True):
            parameter.copy_(saved)
