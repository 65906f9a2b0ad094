"""LoRA metadata made on the CPU, compared with the installed vLLM's own wrapper and tensors."""

import dataclasses
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.helpers.vllm import needs_vllm
from unstable.engines.vllm import lora_metadata
from unstable.engines.vllm.lora_metadata import first_difference, install

pytestmark = needs_vllm
LORAS, VOCABULARY, MOST = 5, 100, 64
NUMBERS = [7, None, 3, 9, 4]
"""Numbers of the loaded LoRAs by slot."""


class LoraConfig(NamedTuple):
    """The wrapper's part of vLLM's config."""

    max_loras: int = LORAS
    specialize_active_lora: bool = True


@pytest.fixture
def kind() -> Any:
    """The class of the tensors, whose package may need Triton, without that package."""
    found = importlib.util.find_spec("vllm")
    assert found is not None and found.origin is not None
    path = Path(found.origin).parent / "lora/ops/triton_ops/lora_kernel_metadata.py"
    spec = importlib.util.spec_from_file_location("lora_kernel_metadata", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LoRAKernelMeta


@pytest.fixture
def wrapper(kind: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that holds the tensors of tokens and of prompts, which the CPU build never uses."""
    from vllm.lora.punica_wrapper import punica_gpu

    monkeypatch.setattr(punica_gpu, "LoRAKernelMeta", kind, raising=False)
    found: Any = punica_gpu.PunicaWrapperGPU
    monkeypatch.setattr(found, "update_metadata", found.update_metadata)
    monkeypatch.delattr(found, "update_metadata_of_vllm", raising=False)
    return found


def test_tensors_equal_vllms_in_random_cases(kind: Any) -> None:
    assert first_difference(kind, cases=100) is None


@pytest.fixture
def imported(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `prepare_on_cpu` import the class without Triton."""
    package = ModuleType("vllm.lora.ops.triton_ops")
    vars(package)["LoRAKernelMeta"] = kind
    monkeypatch.setitem(sys.modules, package.__name__, package)


def test_method_is_replaced_and_restored(wrapper: Any, imported: None) -> None:
    own = wrapper.update_metadata
    assert lora_metadata.prepare_on_cpu() and wrapper.update_metadata is not own
    assert lora_metadata.prepare_on_cpu(), "also if it is replaced already"
    assert not lora_metadata.prepare_on_cpu(on=False) and wrapper.update_metadata is own


def test_another_versions_tensors_are_left_to_vllm(
    wrapper: Any,
    kind: Any,
    imported: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def newer(self: Any, token_lora_mapping: torch.Tensor) -> None:
        known(self, token_lora_mapping)
        self.num_active_loras_cpu += 1

    known, own = kind.prepare_tensors, wrapper.update_metadata
    monkeypatch.setattr(kind, "prepare_tensors", newer)
    with caplog.at_level(logging.WARNING, lora_metadata.__name__):
        assert not lora_metadata.prepare_on_cpu()
    assert "slower (its num_active_loras_cpu is not as expected)" in caplog.text
    assert wrapper.update_metadata is own


def test_another_versions_wrapper_is_left_to_vllm(
    wrapper: Any,
    imported: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def newer(self: Any, mapping: Any, *rest: Any) -> None:
        self.is_prefill = mapping.is_decode

    monkeypatch.setattr(wrapper, "update_metadata", newer)
    with caplog.at_level(logging.WARNING, lora_metadata.__name__):
        assert not lora_metadata.prepare_on_cpu()
    assert "its wrapper also uses is_decode" in caplog.text


def test_wrapper_fills_the_same_tensors_from_a_mapping(wrapper: Any, kind: Any) -> None:
    from vllm.lora.layers import LoRAMapping

    theirs, ours = (wrapper(MOST, MOST, "cpu", lora_config=LoraConfig()) for _ in range(2))
    metas = ("token_mapping_meta", "prompt_mapping_meta")
    for each in (theirs, ours):
        for name in metas:  # uninitialized until a step has as many tokens
            getattr(each, name).token_lora_mapping.zero_()
            getattr(each, name).token_indices_sorted_by_lora_ids.zero_()
    random = np.random.default_rng(0)
    loaded = [0, *(number for number in NUMBERS if number is not None)]
    steps = []
    for step in range(20):
        prompts = random.choice([0] if step == 3 else loaded, 6).tolist()
        lengths = random.integers(1, 9, 6).tolist()
        tokens = [each for each, n in zip(prompts, lengths, strict=True) for _ in range(n)]
        steps.append(LoRAMapping(tuple(tokens), tuple(prompts), is_prefill=step % 2 == 0))
    found: list[list[Any]] = []
    for each in (theirs, ours):
        found.append([])
        for mapping in steps:
            each.update_metadata(mapping, NUMBERS, LORAS, VOCABULARY)
            tables = [getattr(each, name) for name in metas]
            values = [getattr(table, f.name) for table in tables for f in dataclasses.fields(kind)]
            values += [each.is_prefill, each.token_lora_indices, each.sampler_indices]
            found[-1].append([torch.as_tensor(value).clone() for value in values])
        install(wrapper)
    for their_step, our_step in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(their_step, our_step, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(found[0][0], found[0][1], strict=True))
