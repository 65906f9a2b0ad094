"""Versions that are whole models: the base module computes with one version's parameters."""

from itertools import count

from safetensors.torch import load
from torch import nn

from unstable.engines.adapters import misfit
from unstable.models.adapters import weight_places
from unstable.types import Adapter

BASE = 0
"""The number of the base's own weights, to which LoRAs are added."""


class WholeVersions:
    """All weights of each version, in the base's precision.

    Exchanges parameters, not values. Versions have numbers from 1 on.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = weight_places(model)
        self._versions = {BASE: [*model.parameters()]}
        self._in_place = BASE
        self._numbers = count(1)

    def add(self, weights: Adapter) -> int:
        """Store a version and return its number; raises `ValueError` if it is of another model."""
        tensors = load(weights.weights)
        base = dict(zip(self._places, self._versions[BASE], strict=True))
        if wrong := misfit(base, tensors):
            raise ValueError(f"version {weights.name!r} does not fit the base: {wrong}")
        number = next(self._numbers)
        self._versions[number] = [
            nn.Parameter(tensors[name].to(own.dtype), requires_grad=False)
            for name, own in base.items()
        ]
        return number

    def remove(self, number: int) -> None:
        """Remove a version."""
        if self._in_place == number:
            self.put(BASE)
        del self._versions[number]

    def put(self, number: int) -> None:
        """Install a version's weights, or the base's, in the model."""
        if number == self._in_place:
            return
        for places, parameter in zip(self._places.values(), self._versions[number], strict=True):
            for module, name in places:
                module._parameters[name] = parameter  # ten times as fast as setattr
        self._in_place = number
