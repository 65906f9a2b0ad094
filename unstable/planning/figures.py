"""Figures that plans are made with, each with where it is from: cards by their data sheets."""

from collections.abc import Mapping
from typing import NamedTuple

MIB = 2**20


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
