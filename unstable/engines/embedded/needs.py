"""Requirements of the embedded engine: CPU memory."""

from unstable.config import AnyAdapter
from unstable.models.cache_size import CacheSize, read_cache_size
from unstable.models.sizes import ModelShape
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
    """Requirements of one engine per core, each with the base, some adapters and a cache."""

    def memory(self, setup: EngineSetup) -> EngineMemory:
        """Return the memory of an engine, with no more adapters than the run will make."""
        config = setup.config
        others = len(config.opponent_adapters) + len(config.judge_adapters)
        adapters = min(setup.max_cpu_loras, config.loop.steps + 2 + others)
        return embedded_memory(
            setup.shape,
            config.model.adapter,
            setup.dtype,
            adapters=adapters,
            quantize=config.model.quantize,
            cache=read_cache_size(config.model),
            requests=setup.max_requests,
        )


NEEDS = EmbeddedNeeds()


def embedded_memory(
    shape: ModelShape,
    adapter: AnyAdapter,
    dtype: str,
    *,
    adapters: int,
    quantize: str = "none",
    cache: CacheSize | None = None,
    requests: int = 0,
) -> EngineMemory:
    """Return the CPU memory that an embedded engine takes.

    With `cache`, the size of the model's own cache, that cache counts twice, since it grows by
    copies, and a request's states, which may be in fp32, exist from its beginning. For whole
    versions one more version counts, twice and in fp32, while it is being read.
    """
    size, trained = DTYPE_BYTES[dtype], shape.trained_parameters(adapter)
    kind = "whole versions" if adapter == "none" else "LoRAs"
    read = {"loading a version": 2 * FP32 * trained} if adapter == "none" else {}
    states = {} if cache is None else {"states": 2 * FP32 * requests * cache.request}
    return EngineMemory(
        fixed={
            "weights": weight_bytes(shape, dtype, quantize),
            f"{adapters} {kind}": size * adapters * trained,
            **read,
            **states,
            "process": PROCESS,
        },
        token_bytes=max(1, cache_bytes(shape, dtype) if cache is None else 2 * size * cache.token),
        asleep=0,
    )
