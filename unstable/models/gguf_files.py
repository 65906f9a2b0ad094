"""GGUF files: their headers, and their conversion to folders in Hugging Face form.

transformers reads the files. Facts that would cost it seconds or a whole load are read from the
file's own header here: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import contextlib
import hashlib
import io
import math
import mmap
import shutil
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, shown
from unstable.models.hub import cache_folder
from unstable.models.tensors import load_whole, misreadings, reason
from unstable.records.files import new_folder, one_process

SUFFIX = ".gguf"
_MAGIC = int.from_bytes(b"GGUF", "little")
_NUMBERS = dict(enumerate(["B", "b", "H", "h", "I", "i", "f", "?"])) | {10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9  # types of variable size
_ALIGNMENT = 32  # bytes, by default
_SPARE_BYTES = 200_000_000  # disk bytes to leave free


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Header of a GGUF file."""

    architecture: str  # llama.cpp's name
    has_tokenizer: bool
    adds_bos: bool | None  # True if the tokenizer prepends BOS; None: not stated
    elements: int  # number in all tensors


def find_gguf(folder: Path) -> Path | None:
    """Return the GGUF file in a folder; None if it has none.

    Raises `ConfigError` for several. A projector of images is not counted.
    """
    files = sorted(path for path in folder.glob(f"*{SUFFIX}") if "mmproj" not in path.name)
    if len(files) > 1:
        raise ConfigError(
            f"model.name = {shown(str(folder))}: has {len(files)} GGUF files; give one of them, "
            f"such as {files[0]}"
        )
    return files[0] if files else None


def check_gguf(path: Path, name: str) -> None:
    """Raise `ConfigError` if a file cannot be unpacked; reads no weights.

    `name` is `model.name`.
    """
    place = f"model.name = {shown(name)}"
    header = _header([path], name)
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    known = {each.replace("_", "") for each in GGUF_CONFIG_MAPPING} - {"general", "tokenizer"}
    if header.architecture.replace("-", "").replace("_", "") not in known:
        raise ConfigError(
            f"{place}: transformers supports no GGUF of architecture {header.architecture!r}; "
            "give the model's folder in Hugging Face format"
        )
    if not header.has_tokenizer:
        raise ConfigError(f"{place}: contains no tokenizer; give a GGUF file with one")


def unpacked_gguf(path: Path, name: str) -> Path:
    """Return the folder of the dequantized file in the user's cache, made on first use."""
    status = path.stat()
    known_by = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    key = hashlib.sha256(known_by.encode()).hexdigest()[:12]
    return unpacked([path], cache_folder() / f"{path.stem[:80]}-{key}", name)


def unpacked(parts: Sequence[Path], folder: Path, name: str) -> Path:
    """Return `folder`, after dequantizing the file that the parts make into it if it is missing.

    Raises `ConfigError` if that fails.
    """
    if folder.is_dir():
        return folder
    place = f"model.name = {shown(name)}: cannot be unpacked into {folder.parent}"
    remedy = "free disk space there, or set XDG_CACHE_HOME to another folder"
    header = _header(parts, name)
    joined = sum(part.stat().st_size for part in parts) if len(parts) > 1 else 0
    needed = 2 * header.elements + joined + _SPARE_BYTES
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        lack = f"needs {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free"
        raise ConfigError(f"{place} ({lack}); {remedy}")
    try:
        with one_process(folder):
            if not folder.is_dir():
                # On stderr: what `unstable config` prints must stay YAML.
                print(f"unpacking {name} into {folder.parent}, once", file=sys.stderr)
                with new_folder(folder) as scratch:
                    _dequantize(_joined(parts, scratch.parent), header, scratch, place)
    except OSError as error:
        raise ConfigError(f"{place} ({error.strerror or error}); {remedy}") from None
    except ConfigError:
        raise
    except misreadings() as error:
        raise ConfigError(
            f"model.name = {shown(name)}: transformers cannot read this GGUF file "
            f"({reason(error)}); give the model's folder in Hugging Face format"
        ) from None
    return folder


def _joined(parts: Sequence[Path], scratch: Path) -> Path:
    if len(parts) == 1:
        return parts[0]
    whole = scratch / f"whole{SUFFIX}"
    with whole.open("wb") as file:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, file)
    return whole


def _dequantize(weights: Path, header: Header, folder: Path, place: str) -> None:
    import torch
    import transformers

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    if header.adds_bos:  # transformers ignores this field
        tokenizer.add_bos_token = True  # type: ignore[misc]
    tokenizer.save_pretrained(folder)
    # Newer releases keep weights packed by default; older ones always unpack them.
    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with contextlib.redirect_stderr(io.StringIO()):  # hides progress bars
        model = load_whole(
            *(transformers.AutoModelForCausalLM, str(weights.parent), place),
            **options,
            gguf_file=weights.name,
            dtype=torch.bfloat16,
        )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)


def _header(parts: Sequence[Path], name: str) -> Header:
    try:
        return read_header(parts)
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError(
            f"model.name = {shown(name)}: damaged GGUF file ({error}); download it again"
        ) from None


def read_header(parts: Sequence[Path]) -> Header:
    """Read the header of the file that the parts make; raises `ValueError` or `struct.error`.

    They are raised if it is no GGUF file, or is truncated. Only weights are in later parts.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    size = sum(part.stat().st_size for part in parts)
    if not size:
        raise ValueError("empty file")
    with parts[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        magic, release = cursor.number("I"), cursor.number("I")
        if magic != _MAGIC or release not in (2, 3):
            raise ValueError("no header of version 2 or 3")
        tensors, count = cursor.number("Q"), cursor.number("Q")
        values = dict(cursor.entry() for _ in range(count))
        elements = end = 0
        for _ in range(tensors):
            cursor.text()
            shape = [cursor.number("Q") for _ in range(cursor.number("I"))]
            kind, offset = cursor.number("I"), cursor.number("Q")
            block, size_of_block = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            elements += math.prod(shape)
            end = max(end, offset + math.prod(shape) // block * size_of_block)
        alignment = values.get("general.alignment", _ALIGNMENT)
        begin = -(-cursor.at // alignment) * alignment
    if begin + end > size:
        raise ValueError(f"{size} of {begin + end} bytes")
    return Header(
        architecture=str(values.get("general.architecture", "")),
        has_tokenizer="tokenizer.ggml.tokens" in values,
        adds_bos=values.get("tokenizer.ggml.add_bos_token"),
        elements=elements,
    )


class _Cursor:
    """Reader of one value after another."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size: int = self.number("Q")
        self.at += size
        if self.at > len(self._data):
            raise ValueError("truncated header")
        return self._data[self.at - size : self.at].decode("utf-8", "replace")

    def entry(self) -> tuple[str, Any]:
        """Return a name and its value; for a list, its length."""
        return self.text(), self._value(self.number("I"))

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            kind, count = self.number("I"), self.number("Q")
            if kind in (_TEXT, _LIST):
                for _ in range(count):
                    self._value(kind)
            else:
                self.at += count * struct.calcsize(_number_form(kind))
            return count
        return self.number(_number_form(kind))


def _number_form(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"unknown value type {kind}")
    return _NUMBERS[kind]
