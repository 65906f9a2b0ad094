"""Versions that are whole models: the base module computes with the parameters of one at a time."""

from collections.abc import Iterator

import numpy as np
from safetensors.torch import load
from torch import nn

from unstable.engines.adapters import misfit
from unstable.engines.embedded.slots import Ints
from unstable.models.adapters import weight_places
from unstable.types import Adapter

BASE = 0
"""The number of the base's own weights, which LoRAs are added to."""


class WholeVersions:
    """All weights of each version, in the base's precision. Parameters are exchanged, not values.

    Versions have numbers below 0, the base 0.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = weight_places(model)
        self._versions = {BASE: [*model.parameters()]}
        self._in_place = BASE
        self._next = -1

    def add(self, weights: Adapter) -> int:
        """Hold a version, and give it a number; `ValueError` where it is of another model."""
        tensors = load(weights.weights)
        base = dict(zip(self._places, self._versions[BASE], strict=True))
        if wrong := misfit(base, tensors):
            raise ValueError(f"version {weights.name!r} does not fit the base: {wrong}")
        self._versions[self._next] = [
            nn.Parameter(tensors[name].to(own.dtype), requires_grad=False)
            for name, own in base.items()
        ]
        self._next -= 1
        return self._next + 1

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


def of_one_weights(numbers_R: Ints) -> Iterator[slice]:
    """Stretches of sorted numbers that one forward can serve: a whole version, or base and LoRAs.

    >>> [*of_one_weights(np.array([-2, -2, -1, 0, 3]))]
    [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None)]
    """
    if len(numbers_R) == 0:
        return
    weights_R = np.minimum(numbers_R, BASE)
    stops = (np.flatnonzero(np.diff(weights_R)) + 1).tolist()
    for start, stop in zip([0, *stops], [*stops, len(numbers_R)], strict=True):
        yield slice(start, stop)
