"""Parameters that ranks share out (FSDP2): each rank trains its rows of them, as plain tensors."""

from collections.abc import Sequence
from typing import Self

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class ParameterShard(nn.Parameter):
    """This rank's rows of the parameter `of`; of few rows a rank may have none."""

    of: DTensor

    def __new__(cls, values: Tensor, of: DTensor) -> Self:
        """A leaf with these values, in their memory."""
        part: Self = super().__new__(cls, values)
        part.of = of
        return part


def gathered_whole(parameter: nn.Parameter, values: Tensor) -> Tensor:
    """Gather all ranks' `values`, each of its own shard, on the CPU.

    All ranks call it; rank 0 gets the result, the others an empty tensor. For a parameter that each
    rank holds whole the values are returned unchanged.
    """
    if not isinstance(parameter, ParameterShard):
        return values
    of = parameter.of
    whole = DTensor.from_local(
        values, of.device_mesh, of.placements, run_check=False, shape=of.shape, stride=of.stride()
    ).full_tensor()
    return whole.cpu() if dist.get_rank() == 0 else values.new_empty(0)


def own_part(parameter: nn.Parameter, values: Tensor) -> Tensor:
    """This rank's part of values of the whole."""
    if not isinstance(parameter, ParameterShard):
        return values
    mesh = parameter.of.device_mesh
    chunks, index = values.chunk(mesh.size()), mesh.get_local_rank()
    return chunks[index] if index < len(chunks) else values[:0]


def are_parts(parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether ranks shard the parameters; otherwise each holds all of them."""
    return any(isinstance(each, ParameterShard) for each in parameters)
