"""An adapter as one zip file that states which base weights it was made for.

Zips from anyone can be unpacked: nothing in them can leave the folder, and their sizes are bounded.
A base is identified by its weights and not only by its name, since copies of a model under one name
differ.
"""

import hashlib
import io
import json
import mmap
import stat
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, ModelConfig, shown
from unstable.models.adapters import CONFIG_FILE, WEIGHTS_FILE
from unstable.models.base import model_path
from unstable.models.inspection import LORA, check_start
from unstable.models.problems import read_json
from unstable.records.files import new_folder, one_process, write_whole
from unstable.types import Adapter

BASE_FILE = "base.json"
CARD_FILE = "README.md"
MEMBERS = (WEIGHTS_FILE, CONFIG_FILE, BASE_FILE, CARD_FILE)
MAX_BYTES = 2**30
"""Most bytes that a zip may unpack to, in total."""


def describe_base(model: ModelConfig, envs: Sequence[str]) -> dict[str, Any]:
    """Describe what an adapter must fit: the base's name and weights, the LoRA, the games."""
    return {
        "name": model.name,
        "games": list(envs),
        "fingerprint": fingerprint(model),
        "adapter": model.model_dump()["adapter"],
    }


def fingerprint(model: ModelConfig) -> str:
    """Return the SHA-256 of the base's tensors, with names, types and shapes, in any files.

    Takes 2 s per GB at most. Raises `ConfigError` if the model is not in safetensors files.
    """
    digest = hashlib.sha256()
    tensors: dict[str, tuple[Path, int, dict[str, Any]]] = {}
    for path in weight_files(model):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        tensors |= {name: (path, 8 + size, entry) for name, entry in header.items()}
    for name, (path, start, entry) in sorted(tensors.items()):
        begin, end = entry["data_offsets"]
        digest.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode())
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
            view[start + begin : start + end] as content,
        ):
            digest.update(content)
    return digest.hexdigest()


def weight_files(model: ModelConfig) -> list[Path]:
    """Return the base's safetensors files, in its folder or the hub's cache.

    Raises `ConfigError` if it has none.
    """
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

    base = model_path(model)
    try:
        return [_file(base, SAFE_WEIGHTS_NAME)]
    except OSError:
        pass  # sharded weights have an index instead
    try:
        index = json.loads(_file(base, SAFE_WEIGHTS_INDEX_NAME).read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(
            f"model.name = {model.name!r}: no {SAFE_WEIGHTS_NAME}, which identifies a zip's base; "
            "save the model as safetensors, or leave sft.zip out"
        ) from None
    return [_file(base, name) for name in set(index["weight_map"].values())]


def _file(base: str, name: str) -> Path:
    from transformers.utils import cached_file

    path = cached_file(base, name)
    assert path is not None, "a missing file raises"
    return Path(path)


def made_for(folder: Path) -> list[str]:
    """Return the envs that an unpacked adapter was made for; empty if it states none."""
    try:
        games = read_json(folder / BASE_FILE, LORA).get("games")
    except (OSError, ValueError):
        return []
    return [str(game) for game in games] if isinstance(games, list) else []


def misfit(folder: Path, model: ModelConfig) -> str | None:
    """Return why the unpacked adapter in `folder` cannot initialize this model; None if it can."""
    if not (folder / BASE_FILE).is_file():
        return f"it has no {BASE_FILE}, which identifies its base"
    try:
        described = read_json(folder / BASE_FILE, LORA)
    except ValueError as error:
        return str(error)
    if lacking := [name for name in ("name", "adapter", "fingerprint") if name not in described]:
        return f"its {BASE_FILE} has no {lacking[0]}"
    if described["name"] != model.name:
        return f"it was made for {described['name']}, not {model.name}"
    if model.adapter == "none":
        return "it is a LoRA, but all weights are trained"
    given, wanted = described["adapter"], model.adapter.model_dump()
    if given != wanted:
        return f"its LoRA has {_words(given)}, not {_words(wanted)}"
    if described["fingerprint"] != fingerprint(model):
        return f"it was made for other weights of {model.name}"
    if "games" not in described:
        return f"its {BASE_FILE} has no games"
    try:
        check_start(folder, model, "model.init")
    except ConfigError as error:
        return str(error)
    return None


def _words(adapter: Any) -> str:
    if not isinstance(adapter, dict):
        return shown(adapter)
    return ", ".join(f"{name} {value}" for name, value in sorted(adapter.items()))


def pack_adapter(adapter: Adapter, path: Path, *, base: dict[str, Any], card: str) -> None:
    """Write the adapter in bfloat16 with `base`, as JSON, and `card`, in Markdown.

    The same arguments give the same bytes.
    """
    files = {
        WEIGHTS_FILE: _in_bfloat16(adapter.weights),
        CONFIG_FILE: _json(adapter.config),
        BASE_FILE: _json(base),
        CARD_FILE: card.encode(),
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:  # weights are incompressible
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # fixed date: 1980
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, packed.getvalue())


def _in_bfloat16(weights: bytes) -> bytes:
    import torch
    from safetensors.torch import load, save

    return save({name: tensor.to(torch.bfloat16) for name, tensor in load(weights).items()})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"


def unpack_newer(path: Path, folder: Path) -> None:
    """Unpack the zip if it exists and `folder` does not, or is older; one process at a time."""
    if not path.is_file() or not _is_older(folder, path):
        return
    with one_process(folder):
        if _is_older(folder, path):
            unpack(path, folder)


def _is_older(folder: Path, path: Path) -> bool:
    unpacked = folder / BASE_FILE
    return not unpacked.is_file() or unpacked.stat().st_mtime < path.stat().st_mtime


def unpack(path: Path, folder: Path) -> None:
    """Unpack a file of `pack_adapter` into `folder`, completely or not at all, and replace it.

    Raises `ConfigError` for anything else: other members, links, more than `MAX_BYTES`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(archive, path)
            with new_folder(folder, replace=True) as scratch:
                for name in MEMBERS:
                    (scratch / name).write_bytes(archive.read(name))
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise _refusal(path, f"cannot be unpacked ({error})") from None


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    seen = set()
    for member in archive.infolist():
        if member.filename not in MEMBERS:
            raise _refusal(path, f"contains {member.filename!r}; expected {', '.join(MEMBERS)}")
        if member.filename in seen:
            raise _refusal(path, f"contains {member.filename} twice")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise _refusal(path, f"its {member.filename} is a link")
        seen.add(member.filename)
    if lacking := [name for name in MEMBERS if name not in seen]:
        raise _refusal(path, f"has no {lacking[0]}")
    # Reading a member stops at its stated size.
    size = sum(member.file_size for member in archive.infolist())
    if size > MAX_BYTES:
        raise _refusal(path, f"unpacks to {size / 2**20:,.0f} MiB, limit {MAX_BYTES >> 20:,}")


def _refusal(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path}: {reason}; create it with unstable sft, or delete it")
