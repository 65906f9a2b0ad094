"""Choosing: which engine serves a config on a machine, in which precision, or why it cannot."""

from typing import Literal

from unstable.config import ConfigError, RunConfig
from unstable.models.adapters import VLLM_RANKS, lora_ranks
from unstable.planning.machine import Machine

Engine = Literal["embedded", "vllm"]
Dtype = Literal["bfloat16", "float32"]


def choose_engine(config: RunConfig, machine: Machine) -> tuple[Engine, list[str]]:
    """The engine, and what a person should know of its choice.

    Left to choose, it is vLLM where there are GPUs that it can use. Raises `ConfigError` for what
    the engine that is asked for cannot do here.
    """
    actors, gpus = config.actors, machine.usable_gpus
    notes = [f"GPUs are not used: {machine.cuda_problem}"] if machine.cuda_problem else []
    problem = _vllm_problem(config, machine)
    if actors.engine == "vllm" and problem is not None:
        raise ConfigError(f"actors.engine = 'vllm': {problem}, or set actors.engine to embedded")
    engine: Engine = "embedded"
    if actors.engine == "vllm" or (actors.engine == "auto" and gpus and problem is None):
        engine = "vllm"
        _check_ranks(config)
    elif actors.engine == "auto" and gpus:
        notes.append(f"actors play on the processor: {problem}")
    if actors.share_gpu in ("split", "sleep") and not (engine == "vllm" and gpus):
        raise ConfigError(
            f"actors.share_gpu = {actors.share_gpu!r}, but actors play on the processor; "
            "set actors.share_gpu to auto"
        )
    return engine, notes


def choose_dtype(config: RunConfig, machine: Machine) -> Dtype:
    """The precision of the base weights, the same for all processes."""
    if config.model.dtype != "auto":
        return config.model.dtype
    gpus = machine.usable_gpus
    fast = all(gpu.bfloat16 for gpu in gpus) if gpus else machine.bfloat16
    return "bfloat16" if fast else "float32"


def _vllm_problem(config: RunConfig, machine: Machine) -> str | None:
    """Why vLLM cannot serve this config here, with a remedy."""
    gpus = machine.usable_gpus
    if not machine.has_vllm:
        command = "pip install 'unstable[gpu]'" if gpus else "bash scripts/vllm_cpu.sh"
        return machine.cuda_problem or f"vLLM is not installed; run: {command}"
    if not gpus:
        return None
    need = "vLLM computes LoRA on a GPU in bfloat16 alone"
    old = [gpu for gpu in gpus if not gpu.bfloat16]
    if old:
        return f"{need}, which GPU {old[0].id} ({old[0].name}) cannot; use newer GPUs"
    if choose_dtype(config, machine) == "float32":
        return f"{need}, but model.dtype = 'float32'; set model.dtype to bfloat16"
    return None


def _check_ranks(config: RunConfig) -> None:
    """Raise `ConfigError` for a LoRA of a larger rank than vLLM serves."""
    most = VLLM_RANKS[-1]
    for field, rank in lora_ranks(config).items():
        if rank > most:
            own = field == "model.adapter.rank"
            named = f"{field} = {rank}" if own else f"{field}: a LoRA of rank {rank}"
            change = f"set it to {most}" if own else "leave that opponent out"
            raise ConfigError(
                f"{named}, but vLLM serves ranks up to {most}; {change}, "
                "or set actors.engine to embedded"
            )
