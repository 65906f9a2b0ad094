"""GGUF files are unpacked once; a problem of one is a one-line error before it is read."""

import importlib.metadata
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers import mistakes
from unstable.config import ConfigError, ModelConfig
from unstable.models import gguf_files
from unstable.models.base import check_model, load_tokenizer, model_path
from unstable.models.gguf_files import read_header
from unstable.models.merge import public_name
from unstable.models.wheels import GEMMA3, find_weights

HIDDEN, HEADS, INNER, LAYERS = 32, 4, 64, 2
WORDS = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "▁a"]


def write_gguf(path: Path, *, architecture: str = "llama", words: list[str] = WORDS) -> None:
    """A random Llama whose tokenizer prepends BOS."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    if words:
        kinds = [2, 3, 3, *[6] * 256, 1, 1, 1]  # llama.cpp: unknown, control, byte, normal
        writer.add_tokenizer_model("llama")
        writer.add_token_list(words)
        writer.add_token_scores([0.0] * len(words))
        writer.add_token_types(kinds)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))

    for name in ("token_embd", "output"):
        add(name, len(WORDS), HIDDEN)
    add("output_norm", HIDDEN)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}", HIDDEN, HIDDEN)
        for name in ("ffn_gate", "ffn_up"):
            add(f"{block}.{name}", INNER, HIDDEN)
        add(f"{block}.ffn_down", HIDDEN, INNER)
        for name in ("attn_norm", "ffn_norm"):
            add(f"{block}.{name}", HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model/tiny.gguf"
    path.parent.mkdir()
    write_gguf(path)
    return path


def test_gguf_file_and_its_folder_are_one_model(file, capsys):
    header = read_header([file])
    assert (header.architecture, header.adds_bos) == ("llama", True)
    check_model(ModelConfig(name=str(file)))
    check_model(ModelConfig(name=str(file.parent)))
    folder = model_path(ModelConfig(name=str(file.parent)))
    assert folder == model_path(ModelConfig(name=str(file)))
    assert capsys.readouterr().err.count("unpacking") == 1
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert sum(each.numel() for each in model.parameters()) == header.elements
    assert getattr(model.config, "quantization_config", None) is None
    norm = np.asarray(gguf.GGUFReader(str(file)).tensors[2].data)
    assert model.model.norm.weight.tolist() == pytest.approx(norm.tolist(), rel=2**-8)
    tokenizer = load_tokenizer(ModelConfig(name=str(file)))
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id == 1
    chat = [{"role": "user", "content": "a"}]
    ids: Any = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ids[0] == 1 and ids.count(1) == 1
    assert public_name(ModelConfig(name=str(file))) == "tiny.gguf"


def test_changed_gguf_file_is_another_model(file: Path) -> None:
    before = model_path(ModelConfig(name=str(file)))
    file.write_bytes(file.read_bytes() + bytes(32))
    assert model_path(ModelConfig(name=str(file))) != before


def line_of(path: Path) -> str:
    return mistakes.line_of(check_model, ModelConfig(name=str(path)))


def test_damaged_gguf_is_one_line(file: Path) -> None:
    whole = file.read_bytes()
    for content in (b"", b"GGUF", b"no gguf, but text", whole[:300], whole[:5000], whole[:-1]):
        file.write_bytes(content)
        assert "damaged GGUF file (" in line_of(file)


def test_unsupported_gguf_is_one_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(file, architecture="nobody")
    assert "supports no GGUF of architecture 'nobody'; give" in line_of(file)
    write_gguf(file, words=[])
    assert "contains no tokenizer; give a GGUF file with one" in line_of(file)
    write_gguf(file)
    write_gguf(file.with_name("other.gguf"))
    assert "has 2 GGUF files; give one of them, such as" in line_of(file.parent)
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(gguf_files.shutil, "disk_usage", lambda _: usage)
    assert "(needs 0.2 GB, but 0.0 GB are free); free disk space there, or set XDG" in line_of(file)
    text = file.with_name("notes.txt")
    text.touch()
    assert "not a .gguf file" in line_of(text)


def test_missing_wheel_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.files", missing)
    said = "which is not installed; if you accept Gemma's terms of use"
    mistakes.refused(said, check_model, ModelConfig(name=GEMMA3))


def test_gemma_wheels_form_one_file() -> None:
    try:
        parts = find_weights(GEMMA3)
    except ConfigError as missing:
        pytest.skip(str(missing))
    header = read_header(parts)
    assert (header.architecture, header.adds_bos) == ("gemma3", True)
    assert header.elements == 268_098_176
