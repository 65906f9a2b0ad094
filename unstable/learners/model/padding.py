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

from unstable.learners.model.packing import Scored, ScoredInputs
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


def pad_samples(samples: Sequence[TokenSample]) -> Padded:
    """The samples as rows of the longest one's length, on the CPU."""
    assert all(sample.prompt_ids for sample in samples)
    # The last token predicts no scored token, so it is not an input.
    inputs = [sample.prompt_ids + sample.token_ids[:-1] for sample in samples]
    length = max(map(len, inputs))
    ids_SL = np.zeros((len(inputs), length), np.int64)  # any id: padding is never read
    mask_SL = np.zeros_like(ids_SL)
    for row, ids in enumerate(inputs):
        ids_SL[row, : len(ids)] = ids
        mask_SL[row, : len(ids)] = 1
    scored = Scored.of(samples, length * np.arange(len(inputs)))
    return Padded(
        ids_SL=torch.from_numpy(ids_SL),
        mask_SL=torch.from_numpy(mask_SL),
        **scored.tensors(),
    )
