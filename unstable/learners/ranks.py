"""Learner ranks: several processes make one optimizer step, each of a share of its samples.

Every rank receives the whole batch, derives the same steps from the seed, and passes its own share
through the model. One flat tensor is summed over the network: per optimizer step the gradients with
the figures of all tokens, per scoring pass its scores.
So nothing wraps the model for data parallelism (`DistributedDataParallel` would send gradients
after every micro-batch and average what has to be added up); `shard` alone adds collectives.
"""

import itertools
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from unstable.learners.model.policy import Policy
from unstable.learners.model.whole import TrainedWhole


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the `count` that learn together; alone, it does not communicate."""

    index: int = 0
    count: int = 1

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each fp32 tensor by its sum over all ranks, equal to the bit on all of them."""
        if self.count == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def owners(self, costs: Sequence[int]) -> list[int]:
        """Return the rank of each item: contiguous shares of similar cost."""
        ends = itertools.accumulate(costs)
        total = sum(costs)
        # By each item's midpoint: every rank is within one item of an even share.
        return [
            min(self.count - 1, self.count * (2 * end - cost) // (2 * total))
            for end, cost in zip(ends, costs, strict=True)
        ]


ALONE = Ranks()


def listen(host: str) -> dist.TCPStore:
    """Open the ranks' rendezvous on a free port of this address only, at rank 0."""
    place = socket.create_server((host, 0))  # TCPStore itself would listen on all interfaces
    port = place.getsockname()[1]
    return dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=place.detach()
    )


def join(index: int, count: int, store: dist.Store) -> Ranks:
    """Join the other ranks; returns once all have joined. NCCL on GPUs, else gloo."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=index, world_size=count)
    return Ranks(index, count)


def shard(policy: Policy, device: torch.device, dtype: torch.dtype) -> None:
    """Shard a policy over all ranks (FSDP2); a layer's weights are gathered only while it runs.

    The LoRA of a frozen base stays a full copy on each rank, so that gradients, optimizer,
    references and files equal those of unsharded ranks. If all weights are trained, each rank has
    masters, gradients and moments of its shard only; layers are gathered in `dtype`, and
    gradients are summed in fp32 during the backward. Weights are moved to `device` layer by layer.
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    trained = policy.trained
    options: dict[str, Any] = {"mesh": mesh}
    if isinstance(trained, TrainedWhole):
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    else:
        for parameter in trained.parameters:
            parameter.data = parameter.data.to(device)
        options["ignored_params"] = set(trained.parameters)
    # The root shards embeddings and output layer, which may be one tensor.
    spread = [fully_shard(module, **options) for module in (*policy.layers, policy)]
    if isinstance(trained, TrainedWhole):
        for module in spread:
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
        trained.share_out(spread, dtype)
