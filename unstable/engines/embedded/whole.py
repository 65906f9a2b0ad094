"""Versions that are whole models: the base module computes with the parameters of one at a time."""

from itertools import count

from safetensors.torch import load
from torch import nn

from unstable.engines.adapters import misfit
from unstable.models.adapters import weight_places
from unstable.types import Adapter

BASE = 0
"""The number of the base's own weights, which LoRAs are added to."""


class WholeVersions:
    """All weights of each version, in the base's precision. Parameters are exchanged, not values.

    Versions have numbers from 1 on.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = weight_places(model)
        self._versions = {BASE: [*model.parameters()]}
        self._in_place = BASE
        self._numbers = count(1)

    def add(self, weights: Adapter) -> int:
        """Hold a version, and give it a number; `ValueError` where it is of another model."""
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
        """Forget a version."""
        if self._in_place == number:
            self.put(BASE)
        del self._versions[number]

    def put(self, number: int) -> None:
        """Have the model compute with a version's weights, or with the base's."""
        if number == self._in_place:
            return
        for places, parameter in zip(self._places.values(), self._versions[number], strict=True):
            for module, name in places:
                module._parameters[name] = parameter  # setattr takes ten times as long
        self._in_place = number
