"""Padding: samples as rows of equal length, for models whose attention is not our own.

The model's own forward, with its own masks, scores each row independently: padding
follows a row's tokens, which attend to nothing after them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.learners.model.packing import ScoredInputs, scored_inputs
from unstable.learners.model.token_table import TokenTable, spans
from unstable.types import TokenSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded(ScoredInputs):
    """Samples as rows of L input tokens; their indices are of the rows one after another, [S x L].

    A row's rest is padding.
    """

    ids_SL: Tensor
    mask_SL: Tensor  # 1 for a token, 0 for padding

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the decoder."""
        return {"input_ids": self.ids_SL, "attention_mask": self.mask_SL}


def pad_samples(samples: Sequence[TokenSample] | TokenTable) -> Padded:
    """The samples as rows of the longest one's length, on the CPU."""
    table = samples if isinstance(samples, TokenTable) else TokenTable.of(samples)
    length = int(table.inputs_S.max())
    mask_SL = (np.arange(length) < table.inputs_S[:, None]).astype(np.int64)
    ids_SL = np.zeros_like(mask_SL)  # any id: padding is never read
    ids_SL[mask_SL == 1] = table.ids[spans(table.starts_S, table.inputs_S)]
    return Padded(
        ids_SL=torch.from_numpy(ids_SL),
        mask_SL=torch.from_numpy(mask_SL),
        **scored_inputs(table, length * np.arange(len(table))),
    )
