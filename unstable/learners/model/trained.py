"""The trained parameters of the policy: a LoRA, or all weights (`whole.py`).

Everything else exports, loads, copies and averages them through this value.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load, save
from torch import Tensor, nn

from unstable.config import ConfigError
from unstable.learners.model.parts import ParameterShard, gathered_whole, own_part
from unstable.types import Adapter


class Trained(ABC):
    """The trained parameters of a model, in fp32, in the order of its modules.

    If ranks shard the model, each parameter is this rank's shard of it.
    """

    @property
    @abstractmethod
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that the model computes with and that get gradients."""

    @abstractmethod
    def put(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make the model compute with these parameters, of equal shapes."""

    @abstractmethod
    def refresh(self) -> None:
        """Update rounded copies to the parameters' current values, before a pass."""

    def apart(self, computed: Tensor) -> Tensor:
        """A tensor that the model computes with now, whole, without a gradient."""
        return computed.detach()

    @abstractmethod
    def export(self, name: str) -> Adapter:
        """Return the current values under a name, in fp32.

        Raises `FloatingPointError` if they are not finite.
        """

    @abstractmethod
    def load(self, weights: Adapter) -> None:
        """Take these values; raises `ConfigError` where they do not fit."""


class TrainedLora(Trained):
    """A LoRA, which every rank holds whole."""

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
        return [getattr(module, name) for module, name in self._slots]

    def put(self, parameters: Sequence[nn.Parameter]) -> None:
        for (module, name), parameter in zip(self._slots, parameters, strict=True):
            setattr(module, name, parameter)

    def refresh(self) -> None:
        """Do nothing: `lora.rounded` checks for changes itself."""

    def export(self, name: str) -> Adapter:
        # False keeps PEFT from asking the hub whether the vocabulary was changed.
        state = get_peft_model_state_dict(self._model, save_embedding_layers=False)
        tensors = {key: value.detach().float().cpu().contiguous() for key, value in state.items()}
        config = self._model.peft_config["default"].to_dict() | {"inference_mode": True}
        return exported(name, tensors, json.loads(json.dumps(config, default=_plain)))

    def load(self, weights: Adapter) -> None:
        own = get_peft_model_state_dict(self._model, save_embedding_layers=False)
        tensors = fitting_tensors(weights, {key: value.shape for key, value in own.items()})
        set_peft_model_state_dict(self._model, tensors)


def exported(name: str, tensors: dict[str, Tensor], config: dict[str, Any]) -> Adapter:
    """Return CPU tensors as an adapter; raises `FloatingPointError` if one is not finite."""
    if wrong := _not_finite(tensors):
        raise FloatingPointError(f"adapter {name!r} not exported: {wrong} is not finite")
    metadata = None if config else {"format": "pt"}  # required by transformers
    return Adapter(name=name, weights=save(tensors, metadata=metadata), config=config)


def fitting_tensors(weights: Adapter, expected: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Load tensors of these shapes; raises `ConfigError` if shapes differ or one is not finite."""
    tensors = load(weights.weights)
    given = {key: value.shape for key, value in tensors.items()}
    if given != expected:
        keys = sorted(expected.keys() | given.keys())
        wrong = next(key for key in keys if expected.get(key) != given.get(key))
        raise ConfigError(
            f"adapter {weights.name!r} does not match the model: {wrong} is "
            f"{_shape(given.get(wrong))}, expected {_shape(expected.get(wrong))}; "
            "match model.name and model.adapter, or set model.init to fresh"
        )
    if spoilt := _not_finite(tensors):
        raise ConfigError(
            f"adapter {weights.name!r}: {spoilt} is not finite; use an intact adapter, "
            "or set model.init to fresh"
        )
    return tensors


class TrainedCopy:
    """Parameters of the same shapes, at first with the policy's values, that can replace them.

    As a reference it is the start of a run, which after a warm start is not the base model.
    """

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._policys = trained.parameters
        self.parameters = [_copy(own) for own in self._policys]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model these parameters within the context, and the policy's again afterwards.

        The optimizer and a pending backward of the policy are not affected, unless ranks shard the
        model. A backward of what was computed within the context must also run within it, since
        it may run layers again.
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
        """The values, which cannot be derived from the policy once that has been trained.

        If ranks shard the model, all must call it, and rank 0 gets the values.
        """
        return [gathered_whole(own, own.detach()) for own in self.parameters]

    @torch.no_grad()
    def load_state_dict(self, state: list[Tensor]) -> None:
        """Restore a state that `state_dict` returned."""
        for parameter, saved in zip(self.parameters, state, strict=True):
            parameter.copy_(own_part(parameter, saved))


def _copy(parameter: nn.Parameter) -> nn.Parameter:
    values = parameter.detach().clone()
    return (
        ParameterShard(values, parameter.of)
        if isinstance(parameter, ParameterShard)
        else nn.Parameter(values)
    )


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of a tensor with values that are not finite, if any."""
    return next((name for name, value in tensors.items() if not value.isfinite().all()), None)


def _shape(shape: Sequence[int] | None) -> str:
    return "missing" if shape is None else str(tuple(shape))


def _plain(value: Any) -> Any:
    """Convert what JSON lacks in a PEFT config: a set to a sorted list, an enum to its value."""
    return sorted(value) if isinstance(value, set | frozenset) else value.value
