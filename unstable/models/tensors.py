"""Comparison of the tensors in a model's files with the tensors that its config describes."""

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_whole(kind: Any, path: str, place: str, **options: Any) -> "PreTrainedModel":
    """Load a model by `kind.from_pretrained`, with all of its tensors.

    transformers initializes at random each tensor that the files lack, or hold in another shape.
    This function raises `ConfigError` instead, which begins with `place`.
    """
    return _loaded(kind, path, place, options)[0]


def _loaded(
    kind: Any, path: str, place: str, options: dict[str, Any]
) -> tuple["PreTrainedModel", tuple[str, ...]]:
    """Load a model; returns it with the names of the tensors that it does not use."""
    with quietly():
        model, found = kind.from_pretrained(
            path, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    missing, unused = sorted(found["missing_keys"]), tuple(sorted(found["unexpected_keys"]))
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        held = f", and contain {unused[0]}" if unused else ""
        raise ConfigError(
            f"{place}: its files lack the tensor {missing[0]}{others}, which its config.json "
            f"describes{held}; save the model again, or correct config.json"
        )
    for name, in_files, described in sorted(found["mismatched_keys"]):
        raise ConfigError(
            f"{place}: its files contain {name} as {[*in_files]}, but its config.json describes "
            f"{[*described]}; correct config.json"
        )
    return model, unused


def unused_in(folder: Path, place: str) -> tuple[str, ...]:
    """Return the names of tensors in a folder's files that its model does not use.

    Reads no weights. Raises `ConfigError` if a tensor is missing or has another shape, or if
    transformers cannot build the model.
    """
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    stamps = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return _unused(folder, place, stamps)


@lru_cache(maxsize=8)
def _unused(folder: Path, place: str, stamps: tuple[Any, ...]) -> tuple[str, ...]:
    from transformers import AutoModelForCausalLM

    try:
        return _loaded(AutoModelForCausalLM, str(folder), place, {"device_map": {"": "meta"}})[1]
    except ConfigError:
        raise
    except misreadings() as error:
        raise ConfigError(
            f"{place}: transformers cannot build the model that its config.json describes "
            f"({reason(error)}); correct config.json, or give another model"
        ) from None


def misreadings() -> tuple[type[Exception], ...]:
    """Return the exceptions that transformers raises for malformed files."""
    from huggingface_hub.errors import StrictDataclassError

    usual = (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
    return (*usual, ArithmeticError, StrictDataclassError)


def reason(error: Exception) -> str:
    """Return an error's text in one line of at most 200 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress transformers' progress bars, and its table of tensors while it loads."""
    from transformers.utils import logging

    level, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bar:
            logging.enable_progress_bar()
