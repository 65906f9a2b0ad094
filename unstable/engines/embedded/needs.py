"""What the embedded engine needs: a processor's memory."""

from unstable.config import AdapterConfig
from unstable.models.shape import ModelShape
from unstable.planning.memory import DTYPE_BYTES, PROCESS, EngineMemory, cache_bytes, weight_bytes
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
    adapter: AdapterConfig,
    dtype: str,
    *,
    adapters: int,
    quantize: str = "none",
) -> EngineMemory:
    """What an embedded engine takes of a processor's memory."""
    size = DTYPE_BYTES[dtype]
    return EngineMemory(
        fixed={
            "weights": weight_bytes(shape, dtype, quantize),
            f"{adapters} LoRAs": size * adapters * shape.lora_parameters(adapter),
            "process": PROCESS,
        },
        token_bytes=cache_bytes(shape, dtype),
        asleep=0,
    )
