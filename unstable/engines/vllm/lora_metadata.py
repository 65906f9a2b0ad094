"""Metadata of vLLM's LoRA kernels, made on the CPU.

Before each step whose requests changed, vLLM (0.24 to 0.32) sorts and counts the LoRAs of all
tokens and of all prompts on the GPU, and waits for the results several times, so that it cannot
launch the next step meanwhile (vLLM's pull request 53309). The mapping comes from Python; here it
is sorted there and copied without waiting. Only worker processes import vLLM here.
"""

import bisect
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

log = logging.getLogger(__name__)
Ints = NDArray[np.int32]
_KEPT = "update_metadata_of_vllm"
"""Attribute of the wrapper's class that keeps vLLM's own method."""
_KNOWN = {
    *("is_prefill", "_update_base_metadata", "token_mapping_meta", "prompt_mapping_meta"),
    *("prepare_tensors", "token_lora_indices", "sampler_indices", "gpu_sync_allowed"),
}
"""Names that vLLM's own method reads, in the versions that `_update_metadata` replaces."""


def prepare_on_cpu(on: bool = True) -> bool:
    """Make vLLM's wrapper prepare metadata on the CPU, or restore its own method.

    Return whether it prepares on the CPU. It does not, and logs the reason, if its tensors would
    differ from vLLM's own in random cases.
    """
    try:
        from vllm.lora.ops.triton_ops import LoRAKernelMeta
        from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU
    except ImportError as error:
        return _refused(f"{error}")
    wrapper: Any = PunicaWrapperGPU
    if not on:
        wrapper.update_metadata = vars(wrapper).get(_KEPT, wrapper.update_metadata)
        return False
    own = vars(wrapper).get(_KEPT, wrapper.update_metadata)
    if others := {*own.__code__.co_names} - _KNOWN:
        return _refused(f"its wrapper also uses {', '.join(sorted(others))}")
    try:
        difference = first_difference(LoRAKernelMeta)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError) as error:
        difference = f"{type(error).__name__}: {error}"
    if difference is not None:
        return _refused(difference)
    install(wrapper)
    return True


def _refused(reason: str) -> bool:
    log.warning("vLLM prepares its LoRA metadata itself, which is slower (%s)", reason)
    return False


def install(wrapper: Any) -> None:
    """Replace the method of vLLM's wrapper class that makes metadata."""
    if _KEPT not in vars(wrapper):
        setattr(wrapper, _KEPT, wrapper.update_metadata)
    wrapper.update_metadata = _update_metadata


def _update_metadata(
    self: Any,
    mapping: Any,
    lora_index_to_id: Sequence[int | None],
    max_loras: int,
    vocab_size: int,
    **_: object,
) -> None:
    """Take the LoRAs of a step's tokens and prompts, as vLLM's method does."""
    self.is_prefill = mapping.is_prefill
    self._update_base_metadata(mapping, lora_index_to_id, max_loras, vocab_size)
    slots = {number: slot for slot, number in enumerate(lora_index_to_id) if number is not None}
    fill(self.token_mapping_meta, slots_of(mapping.index_mapping, slots))
    fill(self.prompt_mapping_meta, slots_of(mapping.prompt_mapping, slots))


def slots_of(numbers: Sequence[int], slots: dict[int, int]) -> Ints:
    """Return the slots of LoRAs by their numbers; -1 for number 0, the base model."""
    found = [slots[number] if number > 0 else -1 for number in numbers]
    return np.array(found, np.int32)


def fill(meta: Any, slots_T: Ints) -> None:
    """Write the metadata of T tokens (or prompts) with these slots to the tensors of `meta`."""
    counts = np.bincount(slots_T + 1)
    used = np.flatnonzero(counts)
    is_base_alone = not (used > 0).any()
    meta.no_lora_flag_cpu[0] = is_base_alone
    meta.num_active_loras_cpu[0] = 0 if is_base_alone else _captured(meta, len(used))
    active = np.full(len(meta.active_lora_ids), -1)
    tokens, starts = (
        np.zeros(len(x), int) for x in (meta.num_tokens_per_lora, meta.lora_token_start_loc)
    )
    columns = [
        (meta.active_lora_ids, active),
        (meta.num_tokens_per_lora, tokens),
        (meta.lora_token_start_loc, starts),
    ]
    if not is_base_alone:
        active[: len(used)] = used - 1
        tokens[: len(used)] = counts[used]
        starts[1 : len(used) + 1] = counts[used].cumsum()
        order = np.argsort(slots_T.astype(np.int16), kind="stable")
        columns += [(meta.token_lora_mapping, slots_T)]
        columns += [(meta.token_indices_sorted_by_lora_ids, order)]
    _copy(columns)


def _captured(meta: Any, active: int) -> int:
    """Return the number of LoRAs of the CUDA graph for a number of active ones."""
    captured = meta.captured_lora_counts
    place = bisect.bisect_left(captured, active)
    return captured[place] if place < len(captured) else active


def _copy(columns: Sequence[tuple[Tensor, NDArray[np.int_] | Ints]]) -> None:
    """Copy values to the beginnings of tensors, in one transfer that nothing waits for."""
    joined = torch.from_numpy(np.concatenate([values for _, values in columns]).astype(np.int32))
    device = columns[0][0].device
    if device.type == "cuda":
        joined = joined.pin_memory().to(device, non_blocking=True)
    parts = joined.split([len(values) for _, values in columns])
    for (tensor, values), part in zip(columns, parts, strict=True):
        tensor[: len(values)].copy_(part, non_blocking=True)


def first_difference(kind: Any, cases: int = 20) -> str | None:
    """Return a difference from vLLM's own metadata, a class `LoRAKernelMeta`; None without one.

    Compares all tensors of random mappings, on the CPU.
    """
    rng = np.random.default_rng(0)
    for case in range(cases):
        loras, tokens = int(rng.integers(1, 33)), int(rng.integers(1, 2000))
        slots_T = rng.integers(-1, loras, tokens).astype(np.int32)
        if case % 5 == 0:
            slots_T[:] = -1
        captured = sorted({2**n for n in range(loras.bit_length())} | {loras + 1})
        metas = [kind.make(loras, 2000, "cpu", captured) for _ in range(2)]
        for meta in metas:  # both begin with the metadata of an earlier step
            meta.token_lora_mapping.zero_()
            meta.token_indices_sorted_by_lora_ids.zero_()
            meta.prepare_tensors(torch.arange(-1, loras))
        metas[0].prepare_tensors(torch.from_numpy(slots_T.astype(np.int64)))
        fill(metas[1], slots_T)
        for field in dataclasses.fields(kind):
            theirs, ours = (getattr(meta, field.name) for meta in metas)
            same = torch.equal(theirs, ours) if isinstance(theirs, Tensor) else theirs == ours
            if not same:
                return f"its {field.name} is not as expected"
    return None
