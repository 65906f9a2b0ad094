"""Which engine serves a run's model: the one that `actors.engine` names."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from unstable.config import RunConfig
from unstable.engines.base import Engine
from unstable.engines.embedded.start import start as start_embedded
from unstable.engines.vllm.start import start as start_vllm
from unstable.models.base import load_tokenizer

STARTS: dict[str, Callable[[RunConfig, PreTrainedTokenizerBase, Path], Awaitable[Engine]]] = {
    "embedded": start_embedded,
    "vllm": start_vllm,
}
"""How each engine starts: of a resolved config, the tokenizer, and the file for what it prints."""


async def make_engine(config: RunConfig, log: Path) -> tuple[Engine, PreTrainedTokenizerBase]:
    """The engine of a resolved config, with the model loaded, and the model's tokenizer.

    What the engine itself prints goes to the file `log`. Raises `ConfigError` for a model that
    cannot be served, `RuntimeError` when the engine does not start.
    """
    tokenizer = load_tokenizer(config.model)
    return await STARTS[config.actors.engine](config, tokenizer, log), tokenizer
