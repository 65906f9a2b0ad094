"""Which engine serves a run's model: chosen by `actors.engine`, made here and nowhere else."""

from pathlib import Path
from typing import TYPE_CHECKING

from unstable.collectors.engine import Engine
from unstable.config import RunConfig
from unstable.models.adapters import lora_ranks
from unstable.models.base import (
    load_model,
    load_tokenizer,
    model_path,
    named_stop_token_ids,
    resolve_dtype,
    stop_token_ids,
)
from unstable.models.shape import read_shape

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def make_engine(config: RunConfig, log: Path) -> tuple[Engine, "PreTrainedTokenizerBase"]:
    """The engine of a resolved config, with the model loaded, and the model's tokenizer.

    What vLLM prints goes to the file `log`. Raises `ConfigError` for a model that cannot be served,
    `RuntimeError` when vLLM does not start.
    """
    tokenizer = load_tokenizer(config.model)
    if config.actors.engine == "vllm":
        return await _vllm(config, tokenizer, log), tokenizer
    return _embedded(config, tokenizer), tokenizer


def _embedded(config: RunConfig, tokenizer: "PreTrainedTokenizerBase") -> Engine:
    from unstable.collectors.embedded import EmbeddedEngine

    assert isinstance(config.actors.games_in_flight, int), "launch resolves auto"
    model = load_model(config.model)
    return EmbeddedEngine(
        model,
        stop_token_ids(model, tokenizer),
        max_requests=config.actors.games_in_flight,
        max_length=_max_length(config),
    )


async def _vllm(config: RunConfig, tokenizer: "PreTrainedTokenizerBase", log: Path) -> Engine:
    from unstable.collectors.vllm_engine import VLLMEngine, VLLMSettings

    actors = config.actors
    assert isinstance(actors.games_in_flight, int), "launch resolves auto"
    assert isinstance(actors.max_loras, int) and isinstance(actors.max_cpu_loras, int)
    shape = read_shape(config.model)
    settings = VLLMSettings(
        model=model_path(config.model),
        linears={linear.name: (linear.inputs, linear.outputs) for linear in shape.linears},
        dtype=resolve_dtype(config.model.dtype),
        max_requests=actors.games_in_flight,
        max_length=min(_max_length(config), shape.max_length),
        max_rank=max(lora_ranks(config).values()),
        max_loras=actors.max_loras,
        max_cpu_loras=actors.max_cpu_loras,
        tensor_parallel=actors.tensor_parallel,
        gpu_memory=None if actors.gpu_memory == "auto" else actors.gpu_memory,
        enforce_eager=actors.enforce_eager,
        sleeps=actors.share_gpu == "sleep",
    )
    engine = VLLMEngine(settings, named_stop_token_ids(config.model, tokenizer), log)
    await engine.start()
    return engine


def _max_length(config: RunConfig) -> int:
    """Tokens of the longest prompt and answer together."""
    return config.sampling.max_prompt_tokens + config.sampling.max_tokens
