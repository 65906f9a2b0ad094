"""A model with sharp choices, served."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from transformers import PreTrainedModel

from tests.helpers.models import tiny_model
from tests.helpers.players import STOP
from unstable.engines.embedded.engine import EmbeddedEngine


def sharp_model() -> PreTrainedModel:
    """A tiny model that likes some tokens much more than others."""
    model = tiny_model()
    model.lm_head.weight *= 60
    return model


@asynccontextmanager
async def serving(model: PreTrainedModel) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(model, {STOP}, max_requests=16)
    try:
        yield engine
    finally:
        await engine.close()
