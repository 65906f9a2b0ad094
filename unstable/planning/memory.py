"""Memory estimates: bytes of a learner rank and of an engine, as functions of shapes.

Sums of known allocations, on the safe side; docs/memory.md compares them with measurements. Nothing
is loaded or allocated.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from unstable.config import AnyAdapter
from unstable.models.sizes import ModelShape

GB = 1e9
DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float32": 4}
FP32 = 4
PROCESS = 600_000_000  # Python, torch and its libraries on a CPU
CONTEXT = 700_000_000  # on a GPU: CUDA context, cuBLAS workspaces
_WORKING_LAYERS_GPU = 3  # gradients, temporaries, allocator overhead; unit: activations of a layer
_WORKING_LAYERS = 10  # on a CPU, where malloc retains more
_SNAPSHOT = 20  # bytes per weight while saving: serialized, and moments twice
_LOGITS_ROWS = 256  # rows of logits that the learner scores at a time
QUANTIZED_BYTES: Mapping[str, float] = {"8bit": 1.01, "4bit": 0.52}
"""Bytes per weight of a linear layer by `model.quantize`, scales included, as counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    """Memory of one learner rank: a fixed part, and a part for each token of a micro-batch."""

    fixed: Mapping[str, int]  # bytes by purpose
    token_bytes: int  # activations kept until the backward pass
    checkpointed_token_bytes: int  # activations per token with gradient checkpointing

    def parts(self, tokens: int, checkpointing: bool) -> dict[str, int]:
        """Return bytes by purpose, for a micro-batch of `tokens`."""
        each = self.checkpointed_token_bytes if checkpointing else self.token_bytes
        return {**self.fixed, f"{tokens:,} tokens": tokens * each}

    def total(self, tokens: int, checkpointing: bool) -> int:
        """Return the bytes for a micro-batch of `tokens`."""
        return sum(self.parts(tokens, checkpointing).values())

    def tokens(self, limit_bytes: int, checkpointing: bool) -> int:
        """Return the most tokens of a micro-batch within the limit; negative if it is too small."""
        each = self.checkpointed_token_bytes if checkpointing else self.token_bytes
        return (limit_bytes - sum(self.fixed.values())) // each


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Memory of one actor's engine on one device: a fixed part, and a part per cached token."""

    fixed: Mapping[str, int]  # bytes by purpose
    token_bytes: int  # keys and values
    asleep: int  # bytes on the GPU while a vLLM engine sleeps
    loading: int = 0  # peak bytes while loading weights, if above the total

    def parts(self, tokens: int) -> dict[str, int]:
        """Return bytes by purpose, with room for `tokens` in the cache."""
        return {**self.fixed, f"{tokens:,} cached tokens": tokens * self.token_bytes}

    def total(self, tokens: int) -> int:
        """Return the bytes with room for `tokens` in the cache, or for loading weights if more."""
        return max(self.loading, sum(self.parts(tokens).values()))

    def tokens(self, limit_bytes: int) -> int:
        """Return the most cached tokens within the limit; negative if it is too small."""
        return (limit_bytes - sum(self.fixed.values())) // self.token_bytes


def learner_memory(
    shape: ModelShape,
    adapter: AnyAdapter,
    dtype: str,
    *,
    on_gpu: bool,
    ranks: int = 1,
    sharded: bool = False,
    others: int = 0,
    average: bool = False,
    reference_tokens: int = 0,
    quantize: str = "none",
) -> LearnerMemory:
    """Count a learner rank's memory: weights, trained weights with optimizer, logits, activations.

    A LoRA parameter takes 16 bytes (fp32 master, gradient, two moments of Adam, as counted in ZeRO,
    https://arxiv.org/abs/1910.02054) and a copy in the base's precision; 4 bytes more if ranks sum
    gradients, 8 more for each of `others`, a reference and a teacher, 4 more with an average.
    `sharded` weights are divided equally among ranks; two layers at a time, the embedding and the
    output layer are whole. The working memory of a pass is counted in layers' activations, as
    measured. With gradient checkpointing only each layer's input is kept
    (https://arxiv.org/abs/1604.06174). `reference_tokens` are the tokens of a batch, once for each
    of the others whose hidden states an exact KL keeps, in fp32, and once more if ranks sum them.
    """
    size = DTYPE_BYTES[dtype]
    copies = 8 * others + 4 * average
    weights = weight_bytes(shape, dtype, quantize)
    if sharded:
        layers = size * shape.linear_parameters
        ends = size * shape.parameters - layers  # unsharded root parameters
        weights = weights // ranks + 2 * layers // shape.layers + ends
    if adapter == "none":
        if sharded:
            weights -= size * shape.parameters // ranks  # the masters' shards
        elif dtype == "float32":
            weights = 0
        summed = 4 * (ranks > 1 and not sharded)
        each = copies + summed + (0 if on_gpu else _SNAPSHOT)
        part = shape.parameters // ranks if sharded else shape.parameters
        trained = {"masters and optimizer": master_bytes(shape, dtype, part, each)}
    else:
        each = 16 + size + copies + 4 * (ranks > 1)
        trained = {"LoRA and optimizer": each * shape.lora_parameters(adapter)}
    states = FP32 * (1 + (ranks > 1)) * reference_tokens * shape.hidden
    layer = activation_bytes(shape, adapter, dtype, on_gpu=on_gpu)
    working = (_WORKING_LAYERS_GPU if on_gpu else _WORKING_LAYERS) * layer + FP32 * shape.hidden
    return LearnerMemory(
        fixed={
            "weights": weights,
            **trained,
            "logits": logits_bytes(shape, exact_kl=reference_tokens > 0),
            **({"reference": states} if states else {}),
            "process": CONTEXT if on_gpu else PROCESS,
        },
        token_bytes=shape.layers * layer + working,
        checkpointed_token_bytes=shape.layers * size * shape.hidden + layer + working,
    )


def master_bytes(shape: ModelShape, dtype: str, part: int, more: int) -> int:
    """Count the memory for training all weights, of which a rank has a `part`.

    Each weight takes 20 bytes, with the copy that undoes a failed step, and `more`. The gradient of
    the embedding, or of the output layer, exists twice before it is accumulated.
    """
    largest = (DTYPE_BYTES[dtype] + FP32) * shape.vocabulary * shape.hidden
    return (20 + more) * part + largest


def weight_bytes(shape: ModelShape, dtype: str, quantize: str) -> int:
    """Count the memory of the base: all weights in `dtype`, except quantized linear layers.

    The largest quantized layer counts once more in `dtype`, since products use its dense weight.
    """
    size = DTYPE_BYTES[dtype]
    if quantize == "none":
        return size * shape.parameters
    largest = max((linear.inputs * linear.outputs for linear in shape.linears), default=0)
    dense = shape.parameters - shape.linear_parameters + largest
    return round(QUANTIZED_BYTES[quantize] * shape.linear_parameters) + size * dense


def logits_bytes(shape: ModelShape, *, exact_kl: bool) -> int:
    """Count the memory of a chunk of rows while it is scored.

    It has logits, log-softmax and probabilities in fp32; an exact KL adds the reference's and their
    difference, with a copy in the base's precision.
    """
    each = 18 if exact_kl else 12
    return each * _LOGITS_ROWS * shape.vocabulary


def activation_bytes(shape: ModelShape, adapter: AnyAdapter, dtype: str, *, on_gpu: bool) -> int:
    """Count the bytes that one decoder layer keeps for its backward pass, per token.

    Counted as in https://arxiv.org/abs/2205.05198: a linear layer keeps its input, once for all
    layers that read the same tensor, and with a LoRA `rank` more values; a norm keeps its input in
    fp32 and, if its weight is trained, the factor of that weight; attention keeps queries, keys,
    values and output; the gated MLP keeps both branches and the activated gate.
    """
    size = DTYPE_BYTES[dtype]
    inputs = 2 * shape.hidden + shape.queries + shape.intermediate
    if adapter == "none":
        kept = 2 * shape.hidden  # normalized inputs of norms
    else:
        kept = adapter.rank * len(shape.lora_linears(adapter.targets)) // shape.layers
    norms = 2 * shape.hidden + (shape.queries + shape.keys) * shape.normalized_heads
    if on_gpu and dtype == "bfloat16":
        attention = size * 4 * shape.queries  # key heads are repeated per query head
    else:
        attention = FP32 * 2 * (shape.queries + shape.keys)
    return size * (inputs + kept + 3 * shape.intermediate) + FP32 * norms + attention


def cache_bytes(shape: ModelShape, dtype: str) -> int:
    """Return the bytes of keys and values of one token in all layers."""
    return 2 * shape.layers * shape.keys * DTYPE_BYTES[dtype]
