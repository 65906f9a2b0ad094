"""What the embedded engine needs: a processor's memory."""

from unstable.config import AnyAdapter
from unstable.models.shape import ModelShape
from unstable.planning.memory import (
    DTYPE_BYTES,
    FP32,
    PROCESS,
    EngineMemory,
    cache_bytes,
    weight_bytes,
)
from unstable.planning.needs import EngineNeeds, EngineSetup


class EmbeddedNeeds(EngineNeeds):
    """One engine a core, each with the base, some adapters and a cache."""

    def memory(self, setup: EngineSetup) -> EngineMemory:
        """With no more adapters than the run will make."""
        config = setup.config
        adapters = min(setup.max_cpu_loras, config.loop.steps + 2)
        return embedded_memory(
            setup.shape,
            config.model.adapter,
            setup.dtype,
            adapters=adapters,
            quantize=config.model.quantize,
        )


NEEDS = EmbeddedNeeds()


def embedded_memory(
    shape: ModelShape,
    adapter: AnyAdapter,
    dtype: str,
    *,
    adapters: int,
    quantize: str = "none",
) -> EngineMemory:
    """What an embedded engine takes of a processor's memory.

    Of whole versions one more is there, twice and in fp32, while it is read.
    """
    size, trained = DTYPE_BYTES[dtype], shape.trained_parameters(adapter)
    kind = "whole versions" if adapter == "none" else "LoRAs"
    read = {"a version that comes": 2 * FP32 * trained} if adapter == "none" else {}
    return EngineMemory(
        fixed={
            "weights": weight_bytes(shape, dtype, quantize),
            f"{adapters} {kind}": size * adapters * trained,
            **read,
            "process": PROCESS,
        },
        token_bytes=cache_bytes(shape, dtype),
        asleep=0,
    )
