"""Memory estimates: bytes that a learner rank and an engine take, as functions of shapes.

Sums of what the code is known to keep, on the safe side; docs/memory.md has them beside what was
measured. Nothing is loaded or allocated.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from unstable.config import AnyAdapter
from unstable.models.shape import ModelShape

GB = 1e9
DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float32": 4}
FP32 = 4
PROCESS = 600_000_000  # Python, torch and its libraries on a processor
CONTEXT = 700_000_000  # the same on a GPU: CUDA context, cuBLAS workspaces
_WORKING_LAYERS_GPU = 3  # in activations: gradients, temporaries, what the allocator loses
_WORKING_LAYERS = 10  # the same on a processor, where the C library's heap keeps more for itself
_SNAPSHOT = 20  # bytes of a weight while its version is saved: as bytes, and moments twice
_LOGITS_ROWS = 256  # rows that the learner scores at a time
QUANTIZED_BYTES: Mapping[str, float] = {"8bit": 1.01, "4bit": 0.52}
"""Of a weight of a linear layer by `model.quantize`, scales included, as counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    """One learner rank: what it always holds, and what each token of a micro-batch adds."""

    fixed: Mapping[str, int]  # bytes by what they are for
    token_bytes: int  # activations kept until the backward pass
    checkpointed_token_bytes: int  # the same with gradient checkpointing

    def parts(self, tokens: int, checkpointing: bool) -> dict[str, int]:
        """Bytes by what they are for, while `tokens` are put through."""
        each = self.checkpointed_token_bytes if checkpointing else self.token_bytes
        return {**self.fixed, f"{tokens:,} tokens": tokens * each}

    def total(self, tokens: int, checkpointing: bool) -> int:
        """Bytes while `tokens` are put through."""
        return sum(self.parts(tokens, checkpointing).values())

    def tokens(self, limit_bytes: int, checkpointing: bool) -> int:
        """Most tokens that can be put through at a time within the limit; negative: too small."""
        each = self.checkpointed_token_bytes if checkpointing else self.token_bytes
        return (limit_bytes - sum(self.fixed.values())) // each


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """One actor's engine on one device: what it always holds, and what each cached token adds."""

    fixed: Mapping[str, int]  # bytes by what they are for
    token_bytes: int  # keys and values
    asleep: int  # bytes that stay on the GPU while a vLLM engine sleeps
    loading: int = 0  # bytes at most while weights are loaded, where that is more than is kept

    def parts(self, tokens: int) -> dict[str, int]:
        """Bytes by what they are for, with room for `tokens` in the cache."""
        return {**self.fixed, f"{tokens:,} cached tokens": tokens * self.token_bytes}

    def total(self, tokens: int) -> int:
        """Bytes with room for `tokens` in the cache, or while weights are loaded."""
        return max(self.loading, sum(self.parts(tokens).values()))

    def tokens(self, limit_bytes: int) -> int:
        """Tokens whose keys and values fit within the limit; negative: too small."""
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
    """Count a learner rank's memory: weights, trained ones with optimizer, logits, activations.

    A LoRA parameter takes 16 bytes (fp32 master, gradient, two moments of Adam, as counted in ZeRO,
    https://arxiv.org/abs/1910.02054) and a copy in the base's precision; 4 bytes more where ranks
    sum gradients, 8 more with each of `others`, a reference and a teacher, 4 more with an average.
    `sharded` weights lie in equal parts on all ranks; whole are two layers at a time, embedding and
    output layer. What a pass works with is counted in layers' activations, as measured. With
    gradient checkpointing only each layer's input is kept (https://arxiv.org/abs/1604.06174).
    `reference_tokens` are those of a batch, once for each of the others whose hidden states an
    exact KL keeps, in fp32, and once more where ranks add them up.
    """
    size = DTYPE_BYTES[dtype]
    copies = 8 * others + 4 * average
    weights = weight_bytes(shape, dtype, quantize)
    if sharded:
        layers = size * shape.linear_parameters
        ends = size * shape.parameters - layers  # of the root, which stays whole during a pass
        weights = weights // ranks + 2 * layers // shape.layers + ends
    if adapter == "none":
        if sharded:
            weights -= size * shape.parameters // ranks  # which masters are
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
    """Count what training takes of all weights, of which a rank has a `part`.

    Each takes 20 bytes, with what a step that fails is undone by, and `more`; the embedding's
    gradient, or the output layer's, is there twice before it is added to what there is.
    """
    largest = (DTYPE_BYTES[dtype] + FP32) * shape.vocabulary * shape.hidden
    return (20 + more) * part + largest


def weight_bytes(shape: ModelShape, dtype: str, quantize: str) -> int:
    """Count what the base takes: all in `dtype`, but for quantized linear layers.

    Of those the largest counts once more, in `dtype`, in which it is computed with.
    """
    size = DTYPE_BYTES[dtype]
    if quantize == "none":
        return size * shape.parameters
    largest = max((linear.inputs * linear.outputs for linear in shape.linears), default=0)
    dense = shape.parameters - shape.linear_parameters + largest
    return round(QUANTIZED_BYTES[quantize] * shape.linear_parameters) + size * dense


def logits_bytes(shape: ModelShape, *, exact_kl: bool) -> int:
    """Count what a chunk of rows takes while it is scored.

    In fp32 logits, log-softmax and probabilities; with an exact KL the reference's and their
    difference too, with a copy in the base's precision.
    """
    each = 18 if exact_kl else 12
    return each * _LOGITS_ROWS * shape.vocabulary


def activation_bytes(shape: ModelShape, adapter: AnyAdapter, dtype: str, *, on_gpu: bool) -> int:
    """Count what one decoder layer keeps for its backward pass, for each token.

    Counted as in https://arxiv.org/abs/2205.05198: a linear layer keeps its input, once for all
    that read the same tensor, and with a LoRA `rank` values more; a norm keeps its input in fp32,
    and where its weight is trained what that multiplies; attention keeps queries, keys, values and
    output; the gated MLP keeps both branches and the activated gate.
    """
    size = DTYPE_BYTES[dtype]
    inputs = 2 * shape.hidden + shape.queries + shape.intermediate
    if adapter == "none":
        kept = 2 * shape.hidden  # what a norm's weight is multiplied with
    else:
        kept = adapter.rank * len(shape.lora_linears(adapter.targets)) // shape.layers
    norms = 2 * shape.hidden + (shape.queries + shape.keys) * shape.normalized_heads
    if on_gpu and dtype == "bfloat16":
        attention = size * 4 * shape.queries  # key heads are repeated, one for each query head
    else:
        attention = FP32 * 2 * (shape.queries + shape.keys)
    return size * (inputs + kept + 3 * shape.intermediate) + FP32 * norms + attention


def cache_bytes(shape: ModelShape, dtype: str) -> int:
    """Keys and values of one token in all layers."""
    return 2 * shape.layers * shape.keys * DTYPE_BYTES[dtype]
