"""Descriptions of machines as plain values."""

from pathlib import Path

from unstable.planning.machine import GPU, Machine, this_machine

QWEN = Path(__file__).parent.parent / "data/qwen3-1.7b"
"""The config of Qwen3-1.7B, without weights."""
SMALL = {"model.name": "smollm2-135m"}
LARGE = {"model.name": str(QWEN)}
VERSIONS = {**this_machine().packages, "torch": "2.13.0", "vllm": "0.32.0"}


def machine(cards: int = 0, gigabytes: float = 24.0, **changes: object) -> Machine:
    """Build a machine of 8 cores and 64 GB with `cards` equal, nearly empty GPUs and vLLM."""
    total = int(gigabytes * 1e9)
    gpus = tuple(
        GPU(id=str(index), name="NVIDIA L4", total_bytes=total, free_bytes=total - 400_000_000)
        for index in range(cards)
    )
    values: dict[str, object] = {
        **{"cores": 8, "memory_bytes": 64_000_000_000, "free_bytes": 60_000_000_000},
        **{"bfloat16": True, "packages": VERSIONS, "torch_cuda": "13.0", "gpus": gpus},
        **({"driver": "580.82.07", "driver_cuda": "13.0"} if cards else {}),
    }

    return Machine(**(values | changes))  # type: ignore[arg-type]
