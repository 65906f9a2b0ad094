"""Invalid or malicious user input, each with the expected error line.

`...` in a line matches any words. The functions and classes are targets that configs name.
"""

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

_NO_PATH = "no path; give one of printable characters"


def read_table(name: str) -> list[tuple[list[str], str]]:
    """Read pairs of command line and expected error line, alternating in `tests/data/NAME.txt`."""
    text = (Path(__file__).parent.parent / f"data/{name}.txt").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [
        (shlex.split(words), expected.strip())
        for words, expected in zip(rows[::2], rows[1::2], strict=True)
    ]


# Targets with wrong signatures or faults.


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
    (["train", "--run_dir", "\udcff"], f"tracking.run_dir = '\\udcff': {_NO_PATH}"),
    (["train", "--config", "x" * 300], "--config = 'xxx...': too long for a path; give ..."),
    (["train", "--seed", "1" * 5000], "seed = '111...': ..."),
]
CHECKED = read_table("cannot_run")

_BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
_YAML = "not a config in YAML: "
_TWICE = "is there twice; keep one of them"
_TAGGED = f"{_YAML}line 1: the tag tag:yaml.org,2002:"
_DEEP = b"".join(b" " * i + b"a:\n" for i in range(100))

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
        b"buffer: {}\nseed: 1\nbuffer: {}",
        f"{_YAML}line 3: the key 'buffer' {_TWICE}",
    ),
    ("a deep one", b"games:\n- env: A\n  env: B", f"{_YAML}line 3: the key 'env' {_TWICE}"),
    ("itself", b"games: &a [*a]", f"{_YAML}line 1: the alias *a is not read; write out ..."),
    ("a bomb", _BOMB.encode(), f"{_YAML}line 2: the alias *a is not read; write out ..."),
    ("an undefined alias", b"seed: *x", f"{_YAML}line 1: the alias *x is not read; write out ..."),
    ("an object", b"seed: !!python/object/apply:os.system ['true']", f"{_TAGGED}python/object..."),
    ("a bool tag", b"seed: !!bool x", f"{_TAGGED}bool is not read; leave it out"),
    ("a binary", b"seed: !!binary AAAA", f"{_TAGGED}binary is not read; leave it out"),
    ("depth", b"seed: " + b"[" * 5000, f"{_YAML}line 1: more than 24 values lie in each ..."),
    ("deep keys", _DEEP, f"{_YAML}line 24: more than 24 values lie in each other; no field is ..."),
    ("a list as a key", b"[1, 2]: 3", f"{_YAML}line 1: found unhashable key"),
    ("two documents", b"seed: 1\n---\nseed: 2", f"{_YAML}line 2: but found another document"),
    (
        "a long number",
        b"seed: " + b"1" * 5000,
        f"{_YAML}line 1: a number of so many digits ...; ...",
    ),
    ("a hex one", b"seed: 0x" + b"f" * 5000, f"{_YAML}line 1: a number of so many digits ...; ..."),
    ("no number", b"seed: 0x_", f"{_YAML}..."),
    ("too much", b"#" * 200_000, "has more than 128 KiB; give a config, which is smaller"),
]

_LORA = {
    "base_model.model.a.lora_A.weight": np.zeros((4, 8), np.float32),
    "base_model.model.a.lora_B.weight": np.zeros((8, 4), np.float32),
}
_CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}


def adapter_files(
    folder: Path,
    config: dict[str, Any] | bytes | None = _CONFIG,
    weights: dict[str, Any] | bytes | None = _LORA,
) -> None:
    """Write an adapter's folder; None leaves a file out, bytes are written unchanged."""
    if config is not None:
        raw = config if isinstance(config, bytes) else json.dumps(config).encode()
        (folder / "adapter_config.json").write_bytes(raw)
    if weights is not None:
        raw = weights if isinstance(weights, bytes) else save(weights)
        (folder / "adapter_model.safetensors").write_bytes(raw)


ESCAPE = "\x1b]0;owned\x07\x1b[2J[0]"
"""Control sequences that would rename a terminal's window and clear it."""


def takes_over(observation: str) -> str:
    """A bot whose every action tries to take over the terminal."""
    return ESCAPE


async def never_moves(observation: str) -> str:
    """A bot that never answers within a game's time."""
    await asyncio.sleep(3600)
    return "[0]"
