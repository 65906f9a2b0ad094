"""All weights of a model as trained parameters."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from unstable.learners.model.parts import ParameterShard, gathered_whole, own_part
from unstable.learners.model.trained import Trained, exported, fitting_tensors
from unstable.models.adapters import weight_places
from unstable.types import Adapter


class TrainedWhole(Trained):
    """All weights of a model, tied ones once, with masters in fp32.

    In fp32 the model computes with the masters themselves. In `dtype` it computes with rounded
    copies, refreshed after masters change, and each gradient is added to its master's in fp32 as
    soon as backward computes it. If ranks shard the model, masters are this rank's shards, and FSDP
    rounds them.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._places = weight_places(model)
        self._masters = [
            nn.Parameter(parameter.detach().float()) for parameter in self._computed_with
        ]
        self._own: list[ParameterShard] = []  # this rank's shards, in FSDP's memory
        self._spread: Sequence[FSDPModule] = ()
        self._rounded_from: list[int] = []  # versions of the copied masters
        self.put(self._masters)

    @property
    def _computed_with(self) -> list[nn.Parameter]:
        return [getattr(*places[0]) for places in self._places.values()]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self._masters

    def put(self, parameters: Sequence[nn.Parameter]) -> None:
        if self._own:
            self._exchange(self._masters)
            self._exchange(parameters)
        self._masters = [*parameters]
        if self._own:
            return
        computed = self._masters
        if self._dtype is not torch.float32:
            computed = [_rounded(master, self._dtype) for master in self._masters]
            self._rounded_from = [master._version for master in self._masters]
        for places, parameter in zip(self._places.values(), computed, strict=True):
            for module, name in places:
                setattr(module, name, parameter)

    @torch.no_grad()
    def refresh(self) -> None:
        if not self._rounded_from:
            return
        versions = [master._version for master in self._masters]
        if versions == self._rounded_from:
            return
        for copy, master in zip(self._computed_with, self._masters, strict=True):
            copy.copy_(master)
        self._rounded_from = versions

    def apart(self, computed: Tensor) -> Tensor:
        values = computed.detach()
        if isinstance(values, DTensor):
            return values.full_tensor().to(self._dtype)
        return values

    def share_out(self, modules: Sequence[FSDPModule], dtype: torch.dtype) -> None:
        """Make the shards of `fully_shard` on this rank the masters.

        `modules` are its arguments, `dtype` is the precision that it rounds weights to.
        """
        self._dtype = dtype
        self._spread = modules
        for index, parameter in enumerate(self._computed_with):
            assert isinstance(parameter, DTensor)
            self._own.append(ParameterShard(parameter.to_local().detach(), parameter))
            parameter.register_post_accumulate_grad_hook(self._receiver(index))
        self._masters = [*self._own]

    def _receiver(self, index: int) -> Callable[[Tensor], None]:
        return lambda computed: _hand_over(computed, self._masters[index])

    @torch.no_grad()
    def _exchange(self, parameters: Sequence[nn.Parameter]) -> None:
        """Swap the values that FSDP computes with and the values of these parameters."""
        for module in self._spread:
            module.reshard()  # gathered weights are outdated
        for own, other in zip(self._own, parameters, strict=True):
            if own is not other:
                values = own.clone()
                own.copy_(other)
                other.copy_(values)

    @property
    def _values(self) -> Sequence[nn.Parameter]:
        """The tensors that the model computes with now."""
        return self._own or self._masters

    def export(self, name: str) -> Adapter:
        tensors = {
            key: gathered_whole(values, values.detach()).float().cpu().contiguous()
            for key, values in zip(self._places, self._values, strict=True)
        }
        return exported(name, tensors, {})

    @torch.no_grad()
    def load(self, weights: Adapter) -> None:
        shapes = {
            key: (values.of if isinstance(values, ParameterShard) else values).shape
            for key, values in zip(self._places, self._values, strict=True)
        }
        tensors = fitting_tensors(weights, shapes)
        if self._own:
            self._exchange(self._own)
        for key, values in zip(self._places, self._values, strict=True):
            values.copy_(own_part(values, tensors[key]))


def _rounded(master: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    """A copy to compute with, whose gradients are the master's."""
    copy = nn.Parameter(master.detach().to(dtype))
    copy.register_post_accumulate_grad_hook(lambda computed: _hand_over(computed, master))
    return copy


@torch.no_grad()
def _hand_over(computed: Tensor, master: nn.Parameter) -> None:
    """Move a new gradient to the master, added to its gradient so far."""
    gradient, computed.grad = computed.grad, None
    if gradient is None:  # unused in this backward
        return
    if isinstance(gradient, DTensor):
        gradient = gradient.to_local()
    if master.grad is None:
        master.grad = gradient.to(master.dtype)
    else:
        master.grad += gradient
