"""Figures that plans of time are made with, each with where it is from; those of memory are in
`memory.py` and the engines' needs. docs/memory.md has them as a table.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

MIB = 2**20
TYPICAL_LENGTH = 0.25
"""Of the greatest length of prompt and answer, before anything is measured: an estimate."""

ANSWER_LENGTH = 0.4
"""Of `sampling.max_tokens`, a typical answer: an estimate."""
GAME_TURNS = 8
"""That one game of self-play brings: 7.6 were measured in TicTacToe."""
STEP_S = 4e-3
REQUEST_S = 33e-6
"""Of vLLM's own processor time in a step, and for each request in it: 16.6 ms at 384 requests were
measured (vLLM 0.24, SmolLM2-135M, one H200, log-probabilities on)."""
SMALL_ENGINE = 500_000_000
MOST_ENGINES = 4
ENGINE_ROOM = 20_000_000_000
ENGINE_CORES = 4
ENGINE_GAMES = 48
"""Parameters up to which a card has several engines, and how many: one for so many bytes of the
card, cores, and games that may be in flight. An estimate: most of the 16.6 ms of a step of SmolLM2
on an H200 were the processor's."""
BANDWIDTH_USED = 0.8
"""Of a card's bandwidth, where an engine reads weights and cache: an estimate."""
DENSE = 2
"""How often the dense weights of a quantized layer are written or read in a product: by the kernels
of torchao and bitsandbytes, which make them first."""
MATMUL_USED = 0.66
"""Of a card's arithmetic, in a learner's products: an estimate; of a bare product 790 of 989
TFLOP/s were measured on an H200."""
PASSES = 141
"""How often a learner's norms, rotary embeddings and activations read or write a layer's hidden and
intermediate values: an estimate, 220 ms for 16,384 tokens of Qwen3-1.7B on an H200."""
OTHER = 1.16
"""What attention and gaps between kernels add to that: an estimate."""
LAUNCH_S = 1.9e-3
"""Of launching a layer's kernels in one pass forward and back: 249 kernels a layer were counted."""
SHARED = 2
"""How much slower each is where a busy engine and a busy learner share a card: an estimate."""

DRIVER_S = 0.16e-3
"""Of the driver's thread for a finished game: 160 us were measured (docs/benchmarks.md)."""
NETWORK = 1.25e9
"""Bytes in a second between two nodes: 10 Gbit/s, the least that a cluster of cards has."""


class Card(NamedTuple):
    """A kind of card. `memory_bytes` are those that NVML counts."""

    name: str
    memory_bytes: int
    compute: float  # CUDA compute capability
    flops: float  # in a second, dense, in bfloat16
    bandwidth: float  # bytes of its memory in a second


CARDS: Mapping[str, Card] = {
    "b200": Card("NVIDIA B200", 183_359 * MIB, 10.0, 2250e12, 8.0e12),
    "h200": Card("NVIDIA H200", 143_771 * MIB, 9.0, 989e12, 4.8e12),
    "h100": Card("NVIDIA H100", 81_559 * MIB, 9.0, 989e12, 3.35e12),
    "a100": Card("NVIDIA A100", 81_920 * MIB, 8.0, 312e12, 2.0e12),
    "l40s": Card("NVIDIA L40S", 46_068 * MIB, 8.9, 362e12, 0.86e12),
    "rtx4090": Card("NVIDIA GeForce RTX 4090", 24_564 * MIB, 8.9, 165e12, 1.01e12),
    "rtx3090": Card("NVIDIA GeForce RTX 3090", 24_576 * MIB, 8.6, 71e12, 0.94e12),
    "l4": Card("NVIDIA L4", 23_034 * MIB, 8.9, 121e12, 0.3e12),
}
"""By the word that `unstable doctor --machine` knows a card by."""


def card_like(name: str, memory_bytes: int) -> Card:
    """The card of that name, or else one of about that much memory."""
    words = set(re.split(r"[\s-]+", name))
    for card in CARDS.values():
        if {*card.name.split()[1:]} <= words:
            return card
    sizes = {"rtx3090": 30e9, "l40s": 60e9, "a100": 100e9, "h200": math.inf}
    return CARDS[next(word for word, most in sizes.items() if memory_bytes <= most)]
