"""What a person may give by mistake or by intent, each with the line that it is answered with.

`...` in a line stands for any words. The functions and classes are targets that configs name.
"""

import asyncio
import json
import shlex
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

_NO_PATH = "no path; give one of printable characters"


def read_table(name: str) -> list[tuple[list[str], str]]:
    """Words of a command line with the line that is expected, by turns in `tests/data/NAME.txt`."""
    text = (Path(__file__).parent.parent / f"data/{name}.txt").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [
        (shlex.split(words), expected.strip())
        for words, expected in zip(rows[::2], rows[1::2], strict=True)
    ]


# Targets that are called wrongly or do wrong.


def takes_none() -> str:
    return "[0]"


def takes_two(first: str, second: str) -> str:
    return first + second


def returns_number(_: Any) -> int:
    return 7


def raises(_: Any) -> str:
    raise RuntimeError("on\npurpose")


def leaves(_: Any) -> str:
    sys.exit(3)


def no_moves(_: Any) -> list[str]:
    return []


async def later(_: Any) -> str:
    return "[0]"


class NeedsArguments:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, observation: str) -> str:
        return "[0]"


class NotCallable:
    pass


class NoAlgorithm:
    pass


number = 3

OPTIONS = read_table("wrong_options") + [
    (["train", "--run_dir", "a\nb"], f"tracking.run_dir = 'a\\nb': {_NO_PATH}"),
    (
        ["train", "--run_dir", "\udcff"],
        f"tracking.run_dir = '\\udcff': {_NO_PATH}",
    ),
    (
        ["train", "--config", "x" * 300],
        "--config = 'xxx...': too long for a path; give a shorter one",
    ),
    (["train", "--seed", "1" * 5000], "seed = '111...': ..."),
]
CHECKED = read_table("cannot_run")

_BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
_YAML = "not a config in YAML: "

FILES: list[tuple[str, bytes, str]] = [
    ("a list", b"- 1", "holds a list; write keys such as games:"),
    ("a number", b"3", "holds a int; write keys such as games:"),
    ("no yaml", b"a: [", f"{_YAML}line 1: ..."),
    ("a tab", b"a:\n\t- 1", f"{_YAML}line 2: ..."),
    ("a nul", b"a: \0", f"{_YAML}..."),
    ("no text", b"seed: 1\nmodel: \xff\xfe", "line 2 is not text in UTF-8; save it as such"),
    ("utf-16", "seed: 1".encode("utf-16"), "line 1 is not text in UTF-8; save it as such"),
    (
        "a key twice",
        b"learner: {epochs: 1}\nseed: 1\nlearner: {epochs: 2}",
        f"{_YAML}line 3: the key 'learner' is there twice; keep one of them",
    ),
    (
        "a deep key twice",
        b"games:\n- env: A-v0\n  env: B-v0",
        f"{_YAML}line 3: the key 'env' is there twice; keep one of them",
    ),
    (
        "itself",
        b"games: &a [*a]",
        f"{_YAML}line 1: the alias *a is not read; write out what it stands for",
    ),
    (
        "a bomb",
        _BOMB.encode(),
        f"{_YAML}line 2: the alias *a is not read; write out what it stands for",
    ),
    (
        "an undefined alias",
        b"seed: *x",
        f"{_YAML}line 1: the alias *x is not read; write out what it stands for",
    ),
    (
        "a python object",
        b"seed: !!python/object/apply:os.system ['true']",
        f"{_YAML}line 1: the tag tag:yaml.org,2002:python/object/apply:os.system is not read; "
        "leave it out",
    ),
    (
        "a bool tag",
        b"seed: !!bool x",
        f"{_YAML}line 1: the tag tag:yaml.org,2002:bool is not read; leave it out",
    ),
    (
        "a binary",
        b"seed: !!binary AAAA",
        f"{_YAML}line 1: the tag tag:yaml.org,2002:binary is not read; leave it out",
    ),
    (
        "depth",
        b"seed: " + b"[" * 5000,
        f"{_YAML}line 1: more than 24 values lie in each other; no field is so deep",
    ),
    (
        "deep keys",
        b"".join(b" " * i + b"a:\n" for i in range(100)),
        f"{_YAML}line 24: more than 24 values lie in each other; no field is so deep",
    ),
    ("a list as a key", b"[1, 2]: 3", f"{_YAML}line 1: found unhashable key"),
    ("two documents", b"seed: 1\n---\nseed: 2", f"{_YAML}line 2: but found another document"),
    (
        "a long number",
        b"seed: " + b"1" * 5000,
        f"{_YAML}line 1: a number of so many digits is not read; give a smaller one",
    ),
    (
        "a long hex number",
        b"seed: 0x" + b"f" * 5000,
        f"{_YAML}line 1: a number of so many digits is not read; give a smaller one",
    ),
    ("no number", b"seed: 0x_", f"{_YAML}..."),
    ("too much", b"#" * 200_000, "has more than 128 KiB; give a config, which is smaller"),
]

_LORA = {
    "base_model.model.a.lora_A.weight": np.zeros((4, 8), np.float32),
    "base_model.model.a.lora_B.weight": np.zeros((8, 4), np.float32),
}
_CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}

ADAPTERS: list[tuple[str, dict[str, Any], str]] = [
    ("no config", {"config": None}, "has no adapter_config.json; give a LoRA's folder"),
    ("no weights", {"weights": None}, "has no adapter_model.safetensors; give a LoRA's folder"),
    (
        "no json",
        {"config": b"{"},
        "its adapter_config.json is no JSON (...); give a LoRA's folder",
    ),
    (
        "no text",
        {"config": b"\xff"},
        "its adapter_config.json is no JSON (...); give a LoRA's folder",
    ),
    (
        "depth",
        {"config": b"[" * 100_000},
        "its adapter_config.json is no JSON (...); give a LoRA's folder",
    ),
    (
        "a list",
        {"config": b"[1]"},
        "its adapter_config.json is no JSON object; give a LoRA's folder",
    ),
    (
        "another kind",
        {"config": {**_CONFIG, "peft_type": "LOHA"}},
        "its peft_type is 'LOHA'; give one of kind LORA",
    ),
    (
        "rank below 0",
        {"config": {**_CONFIG, "r": -4}},
        "its r is -4; give a LoRA whose rank is a positive whole number",
    ),
    (
        "rank a text",
        {"config": {**_CONFIG, "r": "4"}},
        "its r is '4'; give a LoRA whose rank is a positive whole number",
    ),
    (
        "no alpha",
        {"config": {"peft_type": "LORA", "r": 4}},
        "its lora_alpha is None; give a LoRA whose alpha is positive",
    ),
    (
        "no safetensors",
        {"weights": b"PK"},
        "its adapter_model.safetensors cannot be read (...header...); save it again",
    ),
    (
        "half of a file",
        {"weights": save(_LORA)[:-4]},
        "its adapter_model.safetensors cannot be read (...); save it again",
    ),
    ("empty weights", {"weights": {}}, "it holds no weights; save it again"),
    (
        "half of a pair",
        {"weights": {"base_model.model.a.lora_A.weight": np.zeros((4, 8), np.float32)}},
        "it lacks base_model.model.a.lora_B.weight; save it again",
    ),
    (
        "magnitudes",
        {"weights": {**_LORA, "base_model.model.a.lora_magnitude_vector": np.zeros(4, np.float32)}},
        "it holds base_model.model.a.lora_magnitude_vector, which is no LoRA's; train linear "
        "layers alone",
    ),
]


def adapter_files(
    folder: Path,
    config: dict[str, Any] | bytes | None = _CONFIG,
    weights: dict[str, Any] | bytes | None = _LORA,
) -> None:
    """An adapter's folder; None leaves a file out, bytes are written as they are."""
    if config is not None:
        raw = config if isinstance(config, bytes) else json.dumps(config).encode()
        (folder / "adapter_config.json").write_bytes(raw)
    if weights is not None:
        raw = weights if isinstance(weights, bytes) else save(weights)
        (folder / "adapter_model.safetensors").write_bytes(raw)


ZIPS: list[tuple[str, bytes, str]] = [
    ("no json", b"{", "its base.json is no JSON (...); give a LoRA's folder"),
    ("no text", b"\xff\xff", "its base.json is no JSON (...); give a LoRA's folder"),
    ("nothing", b"{}", "its base.json has no name"),
    ("a list", b"[]", "its base.json is no JSON object; give a LoRA's folder"),
    ("depth", b"[" * 100_000, "its base.json is no JSON (...); give a LoRA's folder"),
    (
        "another kind of adapter",
        b'{"name": "tiny", "fingerprint": "x", "adapter": 3}',
        "its LoRA has 3, not alpha 64, rank 32, targets all-linear",
    ),
    (
        "another base",
        b'{"name": 7, "fingerprint": "x", "adapter": {}}',
        "it was made for 7, not tiny",
    ),
]


def zip_file(path: Path, base: bytes) -> Path:
    """A zip as `unstable sft` packs one, with such a `base.json`."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("adapter_model.safetensors", save(_LORA))
        archive.writestr("adapter_config.json", json.dumps(_CONFIG))
        archive.writestr("base.json", base)
        archive.writestr("README.md", "")
    return path


ESCAPE = "\x1b]0;owned\x07\x1b[2J[0]"
"""What would rename a terminal's window and clear it, were it obeyed."""


def takes_over(observation: str) -> str:
    """A bot whose every action tries to take over the terminal."""
    return ESCAPE


async def never_moves(observation: str) -> str:
    """A bot that thinks for ever."""
    await asyncio.sleep(3600)
    return "[0]"
