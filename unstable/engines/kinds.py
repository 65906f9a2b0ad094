"""The engines by name: what each needs of a machine, and how a run's own one starts."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.config import RunConfig
from unstable.engines.base import Engine
from unstable.engines.embedded.needs import NEEDS as EMBEDDED
from unstable.engines.vllm.needs import NEEDS as VLLM
from unstable.models.base import load_tokenizer
from unstable.planning.needs import EngineNeeds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NEEDS: Mapping[str, EngineNeeds] = {
    "embedded": EMBEDDED,
    "vllm": VLLM,
}
"""What each needs, by its name, which is that of its folder."""


async def make_engine(config: RunConfig, log: Path) -> tuple[Engine, "PreTrainedTokenizerBase"]:
    """The engine of a resolved config, with the model loaded, and the model's tokenizer.

    What the engine itself prints goes to the file `log`. Raises `ConfigError` for a model that
    cannot be served, `RuntimeError` when the engine does not start.
    """
    tokenizer = load_tokenizer(config.model)
    module = import_module(f"{__package__}.{config.actors.engine}.engine")  # which loads torch
    engine: Engine = await module.start(config, tokenizer, log)
    return engine, tokenizer
