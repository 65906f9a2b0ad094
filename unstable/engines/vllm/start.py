"""How a run starts vLLM."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from unstable.config import RunConfig
from unstable.engines.base import Engine, max_length
from unstable.engines.vllm.engine import VLLMEngine, VLLMSettings
from unstable.models.adapters import lora_ranks
from unstable.models.base import model_path, named_stop_token_ids, resolve_dtype
from unstable.models.shape import read_shape


async def start(config: RunConfig, tokenizer: PreTrainedTokenizerBase, log: Path) -> Engine:
    """The engine with the model loaded; what vLLM prints goes to the file `log`."""
    actors = config.actors
    assert isinstance(actors.games_in_flight, int), "planning resolves auto"
    assert isinstance(actors.max_loras, int) and isinstance(actors.max_cpu_loras, int)
    shape = read_shape(config.model)
    settings = VLLMSettings(
        model=model_path(config.model),
        linears={linear.name: (linear.inputs, linear.outputs) for linear in shape.linears},
        dtype=resolve_dtype(config.model.dtype),
        max_requests=actors.games_in_flight,
        max_length=min(max_length(config), shape.max_length),
        max_rank=None if config.model.trains_all else max(lora_ranks(config).values()),
        max_loras=actors.max_loras,
        max_cpu_loras=actors.max_cpu_loras,
        tensor_parallel=actors.tensor_parallel,
        gpu_memory=None if actors.gpu_memory == "auto" else actors.gpu_memory,
        enforce_eager=actors.enforce_eager,
        top_logprobs=config.tracking.top_logprobs,
        sleeps=actors.share_gpu == "sleep",
        quantize=config.model.quantize,
    )
    engine = VLLMEngine(settings, named_stop_token_ids(config.model, tokenizer), log)
    await engine.start()
    return engine
