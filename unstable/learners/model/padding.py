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

from unstable.learners.model.packing import Scored, sent
from unstable.types import TokenSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Input tokens of S samples in rows of length L, and the N tokens that are scored after them.

    Indices are of the rows one after another, [S x L].
    """

    ids_SL: Tensor
    mask_SL: Tensor  # 1 for a token, 0 for padding
    predictors_N: Tensor  # index of the position that predicts each target
    targets_N: Tensor  # ids of the scored tokens
    temperatures_N: Tensor  # divisors of their logits
    samples_N: Tensor  # index of each target's sample
    states_S: Tensor  # index of each sample's last prompt token

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the decoder."""
        return {"input_ids": self.ids_SL, "attention_mask": self.mask_SL}

    def to(self, device: torch.device) -> "Padded":
        """Copy it to `device`."""
        return Padded(
            ids_SL=sent(self.ids_SL, device),
            mask_SL=sent(self.mask_SL, device),
            predictors_N=sent(self.predictors_N, device),
            targets_N=sent(self.targets_N, device),
            temperatures_N=sent(self.temperatures_N, device),
            samples_N=sent(self.samples_N, device),
            states_S=sent(self.states_S, device),
        )


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
        predictors_N=torch.from_numpy(scored.predictors_N),
        targets_N=torch.from_numpy(scored.targets_N),
        temperatures_N=torch.from_numpy(scored.temperatures_N),
        samples_N=torch.from_numpy(scored.samples_N),
        states_S=torch.from_numpy(scored.ends_S),
    )
