"""Kernels, memory traffic and kept activations of a pass of the learner, counted without a GPU.

    python -m bench.kernels [--tokens 16000] [--shape 1.7b]

Runs a pass forward and backward on torch's meta device, which computes nothing, and counts every
operation that is not a view as one kernel that reads its inputs and writes its outputs once. Two
and three layers give the figures of one. Attention is left out. An RMS norm by torch counts as its
CUDA kernels: one forward, one backward. "µs" is an estimate for an H100: of a matrix product the
longer of arithmetic and traffic, else traffic.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AutoModelForCausalLM

from bench import parser
from bench.learner import SHAPES, make_batch, separate, unfused
from unstable.config import AdapterConfig
from unstable.learners.model.attention import ATTENTION, attend
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.policy import Policy
from unstable.models.adapters import attach_lora
from unstable.records.text import markdown_table

BYTES_S, FLOPS_S = 2.75e12, 6.8e14
"""Speeds of an H100 for copies of medium size and for large products in bfloat16."""
PROMPT, ANSWER = 300, 700
_SHOWN = 12
_WAYS = (
    ("transformers' norms", False, False),
    ("torch's norms", True, False),
    ("and LoRA products of one input together", True, True),
)
_VIEWS = {
    *("view", "t", "transpose", "expand", "slice", "unsqueeze", "squeeze", "select", "detach"),
    *("alias", "_unsafe_view", "permute", "split", "split_with_sizes", "unbind", "as_strided"),
    *("empty", "empty_like", "empty_strided", "new_empty"),
}
_TWO = {"slice_backward"}
"""Operations of two kernels: zeros, and a copy."""
_OPS = torch.library.Library("bench_kernels", "DEF")
_OPS.define("norm(Tensor x, Tensor weight) -> Tensor")
_OPS.define("norm_backward(Tensor gradient, Tensor x, Tensor weight) -> Tensor")
_OPS.impl("norm", lambda x, weight: torch.empty_like(x), "Meta")
_OPS.impl("norm_backward", lambda gradient, x, weight: torch.empty_like(x), "Meta")


class Norm(Function):
    """An RMS norm with a frozen weight, as CUDA computes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.ops.bench_kernels.norm(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.ops.bench_kernels.norm_backward(gradient, *ctx.saved_tensors), None


class NoAttention(Function):
    """Attention without cost."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return torch.empty_like(query).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors)


class Cost(NamedTuple):
    """Sums over kernels."""

    kernels: float = 0
    bytes: float = 0
    seconds: float = 0
    kept: float = 0  # bytes kept for the backward pass

    def plus(self, other: "Cost", times: float = 1) -> "Cost":
        """Add another cost some number of times."""
        return Cost(*(a + times * b for a, b in zip(self, other, strict=True)))


@dataclass(eq=False)
class Counter(TorchDispatchMode):
    """Counts the operations during its context, by name without an overload."""

    costs: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.").removeprefix("bench_kernels.").partition(".")[0]
        if name not in _VIEWS:
            tensors = [x for x in tree_leaves((args, kwargs, found)) if isinstance(x, Tensor)]
            size = sum(map(_size, tensors))
            products = 0.0
            if name in ("mm", "addmm", "addmm_"):
                a, b = [x for x in tree_leaves(args) if isinstance(x, Tensor)][-2:]
                products = 2.0 * a.shape[-2] * a.shape[-1] * b.shape[-1]
            seconds = max(size / BYTES_S, products / FLOPS_S)
            self.costs[name] = self.costs[name].plus(Cost(1 + (name in _TWO), size, seconds))
        return found


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor, without repetitions by strides of 0."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count * tensor.element_size()


def count(policy: Policy, tokens: int) -> dict[str, Cost]:
    """Count a pass over samples of a thousand tokens; "kept" has the bytes kept for backward."""
    batch = make_batch(
        max(1, tokens // (PROMPT + ANSWER)), PROMPT, ANSWER, ANSWER, shared=0, vocab=90
    )
    pack = pack_samples([sample.tokens for sample in batch.samples]).to(torch.device("meta"))
    own = {parameter.untyped_storage()._cdata for parameter in policy.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # held, so that no other one gets its number
        return tensor

    with Counter() as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        policy(pack).logprobs_N.sum().backward()
    counter.costs["kept"] = Cost(kept=sum(storage.nbytes() for storage in kept.values()))
    return dict(counter.costs)


def policy_of(shape: str, layers: int, rank: int) -> Policy:
    """Return a policy with few layers on the meta device."""
    config = copy.deepcopy(SHAPES[shape])
    config.num_hidden_layers = layers
    config.layer_types = ["full_attention"] * layers
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=ATTENTION
        )
        model = attach_lora(base, AdapterConfig(rank=rank, alpha=2 * rank), 0)
    return Policy(model).to("meta")


def whole(shape: str, tokens: int, rank: int, *, fused: bool, joint: bool) -> dict[str, Cost]:
    """Return the costs of a pass of all layers, by operation.

    `fused`: torch's norms; `joint`: LoRA products of layers that read one input together.
    """
    counts = []
    for policy in [policy_of(shape, layers, rank) for layers in (2, 3)]:
        if not joint:
            separate(policy)
        with stand_ins(), nullcontext() if fused else unfused(policy):
            counts.append(count(policy, tokens))
    two, three = counts
    found = {}
    for name in two.keys() | three.keys():
        of_two = two.get(name, Cost())
        of_layer = three.get(name, Cost()).plus(of_two, -1)
        found[name] = of_two.plus(of_layer, SHAPES[shape].num_hidden_layers - 2)
    return found


@contextmanager
def stand_ins() -> Iterator[None]:
    """Replace attention and torch's RMS norm, which runs as many operations on this device."""

    def norm(x: Tensor, _: object, weight: Tensor, __: float) -> Tensor:
        return Norm.apply(x, weight)

    def attention(
        _: object, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any
    ) -> Any:
        return NoAttention.apply(query, key, value), None

    own = F.rms_norm
    F.rms_norm = cast(Any, norm)
    AttentionInterface.register(ATTENTION, attention)
    try:
        yield
    finally:
        F.rms_norm = own
        AttentionInterface.register(ATTENTION, attend)


def main(argv: Sequence[str] | None = None) -> dict[str, Cost]:
    """Print each implementation's most expensive operations, and the sums; returns the sums."""
    options = parser(__doc__, tokens=(16_000, "tokens of the pass"), rank=(32, "rank of the LoRA"))
    options.add_argument("--shape", choices=SHAPES, default="1.7b")
    given = options.parse_args(argv)
    columns = ["", "kernels", "kB per token", "µs per token"]
    sums: dict[str, Cost] = {}
    for name, fused, joint in _WAYS:
        costs = whole(given.shape, given.tokens, given.rank, fused=fused, joint=joint)
        largest = sorted(costs.items(), key=lambda each: -each[1].seconds)[:_SHOWN]
        rows = [[each, *_cells(cost, given.tokens)] for each, cost in largest]
        print(f"\n{name}\n\n{markdown_table(columns, rows)}")
        sums[name] = reduce(Cost.plus, costs.values(), Cost())
    rows = [
        [name, *_cells(cost, given.tokens), f"{cost.kept / 1e9:.1f}"] for name, cost in sums.items()
    ]
    print(f"\n{markdown_table([*columns, 'kept GB'], rows)}")
    return sums


def _cells(cost: Cost, tokens: int) -> list[str]:
    traffic, seconds = cost.bytes / tokens / 1e3, 1e6 * cost.seconds / tokens
    return [f"{cost.kernels:,.0f}", f"{traffic:,.0f}", f"{seconds:.2f}"]


if __name__ == "__main__":
    main()
