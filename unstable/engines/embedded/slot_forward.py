"""Logits by our own attention: all running requests form one packed row and share prefixes."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from unstable.engines.embedded.attention import ATTENTION, ForwardPlan, SlotCache
from unstable.engines.embedded.lora import NO_LORA, GroupedLora, stretches
from unstable.engines.embedded.slots import Ints, SlotPlacement, SlotTable
from unstable.engines.embedded.whole import BASE

_PROBE_LENGTHS = (16, 12)  # tokens of the test sequences
_PROBE_TOLERANCE = 0.5  # share of the logits' spread; bfloat16 has 0.2, a wrong mask 3.7


class SlotForward:
    """A forward that replaces the model's attention until `close`.

    A step packs its tokens into one row, [1, T], segment after segment. Raises `ValueError` if the
    logits differ from the model's own.
    """

    def __init__(
        self, model: PreTrainedModel, lora: GroupedLora, num_slots: int, max_length: int
    ) -> None:
        self.table = SlotTable(num_slots, max_length)
        self._cache = SlotCache(num_slots, max_length, windows_of(model))
        self._model = model
        self._lora = lora
        self._own_attention = model.config.get_text_config()._attn_implementation
        try:
            self._prove()
        except (TypeError, ValueError) as error:
            self.close()
            raise ValueError(str(error)) from None

    def logits(
        self, slots_R: Ints, weights_R: Ints, loras_R: Ints, placements: Sequence[SlotPlacement]
    ) -> Tensor:
        """Return logits [R, V] after the last id of each slot; slots are sorted by version.

        Runs a forward over their uncomputed ids, and one more per whole version. `weights_R` and
        `loras_R` are the numbers of a `Version`; `placements` are those of new requests.
        """
        table = self.table
        before = [p.before for p in placements if p.before]
        found = []
        for weights, start, stop in stretches(weights_R):
            slots = slots_R[start:stop]
            step = ForwardPlan(
                slots,
                table.computed[slots],
                table.length[slots],
                before=before,
                after=[p.after for p in placements if p.after and p.slot in slots],
            )
            before = []  # the first forward runs all copies, before any forward writes
            ids = table.ids[step.slots_T.numpy(), step.positions_T.numpy()]
            found.append(self._forward(torch.from_numpy(ids), step, weights, loras_R[start:stop]))
        return found[0] if len(found) == 1 else torch.cat(found)

    def close(self) -> None:
        """Restore the model's own attention."""
        self._model.set_attn_implementation(self._own_attention)

    def _forward(self, ids_T: Tensor, step: ForwardPlan, weights: int, loras_R: Ints) -> Tensor:
        self._cache.reserve(step.length)
        self._lora.group(weights, loras_R, step.last.numpy() + 1)
        output = self._model(
            input_ids=ids_T[None],
            position_ids=step.positions_T[None],
            use_cache=False,
            logits_to_keep=step.last,
            slot_step=step,
            slot_cache=self._cache,
        )
        return output.logits[0]

    @torch.inference_mode()
    def _prove(self) -> None:
        """Raise `ValueError` unless short sequences match the model's own attention.

        The reference is its "eager" attention, which rounds like ours.
        """
        lengths = [
            min(each, self._cache.max_length) for each in _PROBE_LENGTHS[: len(self.table.length)]
        ]
        vocabulary = self._model.config.get_text_config().vocab_size
        ids = [torch.arange(length) % vocabulary for length in lengths]
        self._model.set_attn_implementation("eager")
        own = [self._model(input_ids=row[None], use_cache=False).logits[0, -1] for row in ids]
        expected = torch.stack(own).float()
        self._model.set_attn_implementation(ATTENTION)
        stops = np.array(lengths)
        step = ForwardPlan(np.arange(len(stops)), np.zeros_like(stops), stops)
        loras = np.full_like(stops, NO_LORA)
        actual = self._forward(torch.cat(ids), step, BASE, loras).float()
        if not self._cache.layers:
            raise ValueError("the model does not use transformers' attention interface")
        if not (actual - expected).abs().mean() <= _PROBE_TOLERANCE * expected.std():
            raise ValueError("packed attention differs from the model's own")


def windows_of(model: PreTrainedModel) -> dict[int, int]:
    """Return the number of last positions that a token sees, its own included, by windowed layer.

    Reads the windows from transformers' cache, which the config alone determines.
    """
    layers = DynamicCache(config=model.config).layers
    windows = {index: getattr(layer, "sliding_window", None) for index, layer in enumerate(layers)}
    return {index: window for index, window in windows.items() if window is not None}
