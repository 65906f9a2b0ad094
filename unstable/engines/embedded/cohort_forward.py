"""Logits by the model's own forward and cache: exact for every architecture, no prefix sharing.

All rows of a forward have equal lengths, so nothing is padded. Padding may change results, above
all the states of convolutions and recurrences.
"""

import inspect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from unstable.engines.embedded.lora import NO_LORA, GroupedLora, stretches
from unstable.engines.embedded.slots import Ints, SlotPlacement, SlotTable
from unstable.engines.embedded.whole import BASE

log = logging.getLogger(__name__)
_UNSUITED = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that models raise for a cache that they do not support."""
_CACHE_NAMES = ("past_key_values", "cache_params")
_BATCH_TOKENS = 4096  # maximum per forward, unless a single sequence has more
_PROBE_LENGTHS = (12, 9)  # cached tokens of the test sequences
_PROBE_TOLERANCE = {torch.float32: 0.02, torch.bfloat16: 0.5}  # share of the logits' spread


@dataclass(slots=True)
class _Cohort:
    """Requests of equal length under one model's weights; `slots` follow the cache's rows."""

    weights: int
    slots: Ints
    cache: Cache | None = None


class CohortForward:
    """A forward per cohort: prompts of equal length that begin together share a cache.

    If a model's cache does not support this, each token recomputes its whole sequence.
    """

    def __init__(
        self, model: PreTrainedModel, lora: GroupedLora, num_slots: int, max_length: int
    ) -> None:
        self.table = SlotTable(num_slots, max_length, shares=False)
        self._model = model
        self._lora = lora
        self._cohorts: list[_Cohort] = []
        takes = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in takes
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._cache_name = next((name for name in _CACHE_NAMES if name in takes), None)
        if not self._proves_cache(max_length):
            self._cache_name = None
            log.warning(
                "%s: the model's cache does not support several requests; the engine recomputes "
                "the whole sequence for each token, which is much slower",
                type(model).__name__,
            )

    def logits(
        self, slots_R: Ints, weights_R: Ints, loras_R: Ints, placements: Sequence[SlotPlacement]
    ) -> Tensor:
        """Return logits [R, V] like `SlotForward.logits`, from one forward per cohort."""
        del placements  # all start at 0
        held = self.table.computed[slots_R] > 0
        if self._cache_name is None:
            held[:] = False
        self._keep(slots_R[held])
        self._cohorts += self._begin(slots_R[~held], weights_R[~held])
        rows = np.zeros(len(self.table.length), dtype=np.int64)
        rows[slots_R] = np.arange(len(slots_R))
        rows_of = [rows[cohort.slots] for cohort in self._cohorts]
        found = [
            self._advance(cohort, loras_R[own])
            for cohort, own in zip(self._cohorts, rows_of, strict=True)
        ]
        return torch.cat(found)[torch.from_numpy(np.concatenate(rows_of).argsort())]

    def close(self) -> None:
        """Drop the caches."""
        self._cohorts.clear()

    def _keep(self, slots: Ints) -> None:
        """Drop the rows of all other slots, whose requests have ended."""
        for cohort in self._cohorts:
            stay = np.isin(cohort.slots, slots)
            if cohort.cache is not None and 0 < stay.sum() < len(stay):
                _keep_rows(cohort.cache, np.flatnonzero(stay))
            cohort.slots = cohort.slots[stay]
        self._cohorts = [cohort for cohort in self._cohorts if len(cohort.slots)]

    def _begin(self, slots_R: Ints, weights_R: Ints) -> Iterator[_Cohort]:
        """Yield new cohorts of these slots, by weights and prompt length."""
        for weights, start, stop in stretches(weights_R):
            slots = slots_R[start:stop]
            lengths = self.table.length[slots]
            for length in np.unique(lengths).tolist():
                equal = slots[lengths == length]
                most = max(1, _BATCH_TOKENS // length)
                for first in range(0, len(equal), most):
                    yield _Cohort(weights, equal[first : first + most])

    def _advance(self, cohort: _Cohort, loras_B: Ints) -> Tensor:
        """Return the last logits [B, V] of a cohort's rows, and extend its cache to there."""
        table, one = self.table, cohort.slots[0]
        start = 0 if cohort.cache is None else int(table.computed[one])
        ids = torch.from_numpy(table.ids[cohort.slots, start : table.length[one]])
        if self._cache_name is not None and cohort.cache is None:
            cohort.cache = DynamicCache(config=self._model.config)
        return self._forward(ids, start, cohort.cache, cohort.weights, loras_B)

    def _forward(
        self, ids_BL: Tensor, start: int, cache: Cache | None, weights: int, loras_B: Ints
    ) -> Tensor:
        """Return last logits [B, V] of tokens from `start` on, and extend `cache` if given."""
        rows, length = ids_BL.shape
        self._lora.group(weights, loras_B, length * np.arange(1, rows + 1))
        options: dict[str, Any] = dict(self._options)
        if self._takes_positions:  # some models count from 0 by default
            options["position_ids"] = torch.arange(start, start + length).expand(rows, -1)
        if cache is not None and self._cache_name is not None:
            options[self._cache_name] = cache
        output = self._model(input_ids=ids_BL, use_cache=cache is not None, **options)
        return output.logits[:, -1]

    @torch.inference_mode()
    def _proves_cache(self, max_length: int) -> bool:
        """Return whether cached logits match whole sequences; one of two cohorts loses a row."""
        if self._cache_name is None:
            return False
        first, second = (max(1, min(length, max_length - 1)) for length in _PROBE_LENGTHS)
        vocabulary = self._model.config.get_text_config().vocab_size
        ids = torch.arange(2 * (first + 1)).view(2, -1) % vocabulary
        other = ids[:1, : second + 1] + 1
        base = BASE, np.full(1, NO_LORA)
        whole = [self._forward(row, 0, None, *base) for row in (ids[1:], other)]
        large, small = (DynamicCache(config=self._model.config) for _ in range(2))
        try:
            self._forward(ids[:, :first], 0, large, BASE, np.full(2, NO_LORA))
            self._forward(other[:, :second], 0, small, *base)
            _keep_rows(large, np.array([1]))
            found = [
                self._forward(ids[1:, first:], first, large, *base),
                self._forward(other[:, second:], second, small, *base),
            ]
        except _UNSUITED as error:
            log.info("%s: %s", type(self._model).__name__, error)
            return False
        expected, actual = torch.cat(whole).float(), torch.cat(found).float()
        tolerance = _PROBE_TOLERANCE[self._model.dtype]
        return bool((actual - expected).abs().mean() <= tolerance * expected.std())


def _keep_rows(cache: Cache, rows: Ints) -> None:
    cache.reorder_cache(torch.from_numpy(rows))  # type: ignore[arg-type]  # a LongTensor
