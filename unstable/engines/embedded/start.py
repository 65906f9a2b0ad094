"""How a run starts the embedded engine."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from unstable.config import RunConfig
from unstable.engines.base import Engine, max_length
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.models.base import load_model, stop_token_ids
from unstable.models.shape import read_shape


async def start(config: RunConfig, tokenizer: PreTrainedTokenizerBase, log: Path) -> Engine:
    """The engine with the model loaded; it logs nothing of its own."""
    assert isinstance(config.actors.games_in_flight, int), "planning resolves auto"
    model = load_model(config.model)
    return EmbeddedEngine(
        model,
        stop_token_ids(model, config.model, tokenizer),
        max_requests=config.actors.games_in_flight,
        max_length=min(max_length(config), read_shape(config.model).max_length),
        top_logprobs=config.tracking.top_logprobs,
    )
