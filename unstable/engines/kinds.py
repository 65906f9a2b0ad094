"""Registry of engines: each engine's requirements, and how a run starts its engine."""

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
"""Requirements of each engine by name; the name is also the name of the engine's folder."""


async def make_engine(config: RunConfig, log: Path) -> tuple[Engine, "PreTrainedTokenizerBase"]:
    """Start the engine of a resolved config; returns it, model loaded, with the model's tokenizer.

    The engine's own output goes to the file `log`. Raises `ConfigError` for a model that cannot be
    served, `RuntimeError` if the engine does not start.
    """
    tokenizer = load_tokenizer(config.model)
    module = import_module(f"{__package__}.{config.actors.engine}.engine")  # loads torch
    engine: Engine = await module.start(config, tokenizer, log)
    return engine, tokenizer
