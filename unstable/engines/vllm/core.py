"""Setup and start of vLLM's own engine, and its error message if it does not start."""

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unstable.engines.vllm import worker
from unstable.engines.vllm.needs import FEW_LORAS, STEP_TOKENS
from unstable.models.adapters import padded_rank
from unstable.models.quantize import torchao_json

_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CONFIGURE_LOGGING": "0",  # this process has its own logging configuration
    "VLLM_NO_USAGE_STATS": "1",
    # A forked process cannot use CUDA once its parent has initialized it.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # often not installed, and only used for top-p
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; 46,000 tokens of the embedded model
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # OMP_NUM_THREADS sets the number
}
"""Defaults for environment variables that vLLM reads."""
_CPU_BLOCK = 32  # tokens; vLLM's CPU default, 128, exceeds the common prefix of many prompts
_ERROR = re.compile(r"\b(\w+(?:Error|Exception)): (.+)")
_PHASES = {
    "weights": re.compile(r"Loading weights took ([\d.]+) s"),
    "compiling": re.compile(r"torch\.compile took ([\d.]+) s in total"),
    "graphs": re.compile(r"Graph capturing finished in ([\d.]+) secs"),
    "profiling, cache and warm-up, with graphs": re.compile(r"warmup model\) took ([\d.]+) s"),
}
"""Lines of vLLM's log with the seconds of its start's phases."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMSettings:
    """Settings of vLLM. `model` is a folder or a Hugging Face id; lengths are in tokens."""

    model: str
    linears: Mapping[str, tuple[int, int]] = field(repr=False)  # (inputs, outputs) by name
    dtype: torch.dtype
    max_requests: int
    max_length: int
    max_rank: int | None  # maximum LoRA rank; None: versions are whole models
    max_loras: int  # per forward pass
    max_cpu_loras: int  # in CPU memory
    tensor_parallel: int = 1
    gpu_memory: float | None = None  # share of a GPU; None: vLLM's own default
    enforce_eager: bool = False
    top_logprobs: int = 0  # likeliest tokens to record per sampled token
    sleeps: bool = False
    quantize: str = "none"  # see `model.quantize`


def start_core(settings: VLLMSettings, output: Path) -> Any:
    """Start vLLM's engine with its output in a file, and log the seconds of each phase.

    Raises `RuntimeError` with the cause and the file's path if it fails.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if torch.version.cuda is not None:
        # In each of vLLM's processes torch would use all cores, which slows down those with games.
        threads = max(1, torch.get_num_threads() // settings.tensor_parallel)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if " " in torch.__file__ and not torch.cuda.is_available():
        # torch's CPU compiler does not quote the paths of its headers.
        os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    output.touch()
    begin = output.stat().st_size  # earlier output belongs to a previous engine
    began = time.perf_counter()
    with output_into(output), _owned():
        from vllm.v1.engine.async_llm import AsyncLLM

        imported = time.perf_counter()
        arguments = _engine_args(settings)
        try:
            with _children_log():
                engine = AsyncLLM.from_engine_args(arguments)
        except Exception as error:  # vLLM's child process has only printed the cause
            reason = _last_error(output, begin) or f"{type(error).__name__}: {error}"
            raise RuntimeError(f"vLLM failed to start: {reason}; see {output}") from error
    phases = {"import": imported - began, **phases_of(_text(output, begin))}
    named = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
    log.info("vLLM started in %.1f s (%s)", time.perf_counter() - began, named)
    return engine


def phases_of(text: str) -> dict[str, float]:
    """Return the seconds of the phases that vLLM's output names."""
    found = {name: pattern.findall(text) for name, pattern in _PHASES.items()}
    return {name: float(seconds[-1]) for name, seconds in found.items() if seconds}


def _engine_args(settings: VLLMSettings) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    options = _quantization(settings.quantize)
    if settings.tensor_parallel > 1:
        # In a Ray placement group vLLM would let Ray start its workers, even on other nodes.
        options["distributed_executor_backend"] = "mp"
    on_cpu = current_platform.is_cpu()
    if on_cpu:
        options["block_size"] = _CPU_BLOCK
    else:
        options["max_num_batched_tokens"] = STEP_TOKENS
        if not settings.enforce_eager:
            sizes = graph_sizes(settings.max_requests)
            options["compilation_config"] = {"cudagraph_capture_sizes": sizes}
        if settings.gpu_memory is not None:
            options["gpu_memory_utilization"] = settings.gpu_memory
    if settings.max_rank is not None:
        options |= {
            "enable_lora": True,
            "max_lora_rank": padded_rank(settings.max_rank),
            "max_loras": settings.max_loras + on_cpu,  # on a CPU the base needs a slot too
            "max_cpu_loras": settings.max_cpu_loras + on_cpu,
        }
        if not on_cpu:
            # Kernels sized for the LoRAs of a step instead of all slots. Needs more CUDA graphs,
            # which take longer to capture.
            options["specialize_active_lora"] = settings.max_loras > FEW_LORAS
    return AsyncEngineArgs(
        model=settings.model,
        dtype=str(settings.dtype).removeprefix("torch."),
        skip_tokenizer_init=True,
        generation_config="vllm",  # ignores the model's sampling defaults
        logprobs_mode="processed_logprobs",  # after temperature
        max_model_len=settings.max_length,
        max_num_seqs=settings.max_requests,
        enable_prefix_caching=True,
        tensor_parallel_size=settings.tensor_parallel,
        enforce_eager=settings.enforce_eager,
        enable_sleep_mode=settings.sleeps,
        worker_extension_cls=f"{worker.__name__}.{worker.Extension.__name__}",
        disable_log_stats=True,
        enable_log_requests=False,
        **options,
    )


def graph_sizes(max_requests: int) -> list[int]:
    """Return the sizes, in tokens, of steps for which vLLM captures CUDA graphs.

    vLLM captures each size up to `max_requests` also for steps without prompts, and all of them for
    several numbers of LoRAs: its own 51 sizes gave 564 graphs with 384 requests and 9 slots, these
    15 give 162. Its largest size is 512; here steps of all requests and some new prompts have one.

    >>> graph_sizes(100)
    [1, 2, 4, 8, 16, 32, 64, 100, 136, 200, 272]
    """
    apart = -(-max_requests // 512) * 64
    small = [2**power for power in range(6)] + [*range(64, apart, 64)]
    small += range(apart, max_requests, apart)
    mixed = [-(-thirds * max_requests // 24) * 8 for thirds in (4, 6, 8)]
    sizes = [size for size in small if size < max_requests]
    return sorted({*sizes, max_requests, *(min(size, STEP_TOKENS) for size in mixed)})


def _quantization(quantize: str) -> dict[str, Any]:
    """Return options for vLLM to quantize weights on load, to the same values as the learner's."""
    if quantize == "none":
        return {}
    if quantize == "4bit":
        return {"quantization": "bitsandbytes"}
    return {
        "quantization": "torchao",
        "hf_overrides": {"quantization_config_dict_json": torchao_json()},
    }


@contextlib.contextmanager
def _children_log() -> Iterator[None]:
    """Have vLLM's processes that start during the block write its messages to their output.

    Variables that the user has set are kept. vLLM (0.32) then configures this process's logging
    too, which is restored.
    """
    messages = {"VLLM_CONFIGURE_LOGGING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    changed = [name for name in messages if os.environ[name] == _ENVIRONMENT[name]]
    own, factory = logging.getLogger("vllm"), logging.getLogRecordFactory()
    handlers, level, propagate = [*own.handlers], own.level, own.propagate
    os.environ.update({name: messages[name] for name in changed})
    try:
        yield
    finally:
        os.environ.update({name: _ENVIRONMENT[name] for name in changed})
        logging.setLogRecordFactory(factory)
        own.handlers[:], own.propagate = handlers, propagate
        own.setLevel(level)


@contextlib.contextmanager
def _owned() -> Iterator[None]:
    """Tie processes that start during the block, and only these, to the life of this process."""
    os.environ[worker.OWNER_VARIABLE] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[worker.OWNER_VARIABLE]


@contextlib.contextmanager
def output_into(file: Path) -> Iterator[None]:
    """Redirect this process's output to a file during the block.

    Processes that start during the block write there permanently.
    """
    own = [os.dup(descriptor) for descriptor in (1, 2)]
    with file.open("ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    try:
        yield
    finally:
        for descriptor, saved in zip((1, 2), own, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


def _text(output: Path, begin: int) -> str:
    return output.read_bytes()[begin:].decode("utf-8", errors="replace")


def _last_error(output: Path, begin: int) -> str | None:
    """Return the last specific error in vLLM's output from byte `begin` on, None without one."""
    found = _ERROR.findall(_text(output, begin))
    errors = [f"{kind}: {text}" for kind, text in found if "initialization failed" not in text]
    return errors[-1] if errors else None
