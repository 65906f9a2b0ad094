"""The two ways to compute a step's logits, and the choice between them for a model."""

import logging
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from unstable.engines.embedded.cohort_forward import CohortForward
from unstable.engines.embedded.lora import GroupedLora
from unstable.engines.embedded.slot_forward import SlotForward
from unstable.engines.embedded.slots import Ints, SlotPlacement, SlotTable
from unstable.models.support import support_of

log = logging.getLogger(__name__)


class Forward(Protocol):
    """A way to compute the next token's logits of all running requests."""

    table: SlotTable

    def logits(
        self, slots_R: Ints, weights_R: Ints, loras_R: Ints, placements: Sequence[SlotPlacement]
    ) -> Tensor:
        """Return logits [R, V] after the last id of each slot; slots are sorted by version.

        `weights_R` and `loras_R` are the numbers of a `Version`; `placements` are those of new
        requests.
        """

    def close(self) -> None:
        """Restore the model's original behavior."""


def make_forward(
    model: PreTrainedModel, lora: GroupedLora, num_slots: int, max_length: int, *, packed: bool
) -> Forward:
    """Return a `SlotForward` if `packed` and the model supports it, else a `CohortForward`."""
    if packed and support_of(model.config.get_text_config().model_type).path == "packed":
        try:
            return SlotForward(model, lora, num_slots, max_length)
        except ValueError as error:
            log.warning(
                "%s: %s; the engine batches prompts of equal length instead, which is slower",
                type(model).__name__,
                error,
            )
    return CohortForward(model, lora, num_slots, max_length)
