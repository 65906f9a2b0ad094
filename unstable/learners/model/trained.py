"""What of the policy is trained: the only place that knows which parameters these are.

Today it is a LoRA. Everything else exports, loads, copies and averages it through this value.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from peft import PeftModel
from torch import Tensor, nn

from unstable.models.adapters import export_adapter, load_weights
from unstable.types import Adapter


class Trained:
    """The trained parameters of a model, in fp32, in the order of its modules."""

    def __init__(self, model: PeftModel) -> None:
        self._model = model
        self._slots = [
            (module, name)
            for module in model.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        ]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that the model computes with now."""
        return [getattr(module, name) for module, name in self._slots]

    def put(self, parameters: Sequence[nn.Parameter]) -> None:
        """Have the model compute with these, of the same shapes."""
        for (module, name), parameter in zip(self._slots, parameters, strict=True):
            setattr(module, name, parameter)

    def export(self, name: str) -> Adapter:
        """The values as they stand, under a name of their own.

        Raises `FloatingPointError` rather than give what is not finite.
        """
        return export_adapter(self._model, name)

    def load(self, weights: Adapter) -> None:
        """Take these values; raises `ConfigError` where they do not fit."""
        load_weights(self._model, weights)


class TrainedCopy:
    """Parameters of the same shapes, at first with the policy's values, that can replace them.

    As a reference this is where a run began: with a warm start not the bare base model.
    """

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._policys = trained.parameters
        self.parameters = [nn.Parameter(own.detach().clone()) for own in self._policys]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has these parameters; afterwards, whatever happens, the policy's again.

        Parameters are exchanged, not values, so neither the optimizer nor a backward of the policy
        that is still to come notices. A backward of what was computed in here belongs in here as
        well, since it may run layers again.
        """
        self._trained.put(self.parameters)
        try:
            yield
        finally:
            self._trained.put(self._policys)

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Become decay x these values + (1 - decay) x the policy's; 0: a copy."""
        for own, policys in zip(self.parameters, self._policys, strict=True):
            own.lerp_(policys, 1 - decay)

    def export(self, name: str) -> Adapter:
        """The values, as `Trained.export` gives them."""
        with self.in_place():
            return self._trained.export(name)

    def load(self, weights: Adapter) -> None:
        """Take these values; raises `ConfigError` where they do not fit."""
        with self.in_place():
            self._trained.load(weights)

    def state_dict(self) -> list[Tensor]:
        """The values, which cannot be derived from the policy once that has been trained."""
        return [parameter.detach() for parameter in self.parameters]

    @torch.no_grad()
    def load_state_dict(self, state: list[Tensor]) -> None:
        """Restore what `state_dict` gave."""
        for parameter, saved in zip(self.parameters, state, strict=True):
            parameter.copy_(saved)
