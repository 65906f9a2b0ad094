"""The two ways to compute a step's logits, and the choice between them for a model."""

import logging

from transformers import PreTrainedModel

from unstable.engines.embedded.cohort_forward import CohortForward
from unstable.engines.embedded.lora import GroupedLora
from unstable.engines.embedded.slot_forward import SlotForward
from unstable.models.support import PACKED

log = logging.getLogger(__name__)
Forward = SlotForward | CohortForward
"""A way to compute the next token's logits of all running requests."""


def make_forward(
    model: PreTrainedModel, lora: GroupedLora, num_slots: int, max_length: int, *, packed: bool
) -> Forward:
    """Return a `SlotForward` if `packed` and the model supports it, else a `CohortForward`."""
    if packed and model.config.get_text_config().model_type in PACKED:
        try:
            return SlotForward(model, lora, num_slots, max_length)
        except ValueError as error:
            log.warning(
                "%s: %s; the engine batches prompts of equal length instead, which is slower",
                type(model).__name__,
                error,
            )
    return CohortForward(model, lora, num_slots, max_length)
