"""Which engine serves a run's model: the one whose folder `actors.engine` names."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.config import RunConfig
from unstable.engines.base import ScoringEngine
from unstable.models.base import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def make_engine(
    config: RunConfig, log: Path
) -> tuple[ScoringEngine, "PreTrainedTokenizerBase"]:
    """The engine of a resolved config, with the model loaded, and the model's tokenizer.

    What the engine itself prints goes to the file `log`. Raises `ConfigError` for a model that
    cannot be served, `RuntimeError` when the engine does not start.
    """
    tokenizer = load_tokenizer(config.model)
    engine = import_module(f"unstable.engines.{config.actors.engine}.start")
    return await engine.start(config, tokenizer, log), tokenizer
