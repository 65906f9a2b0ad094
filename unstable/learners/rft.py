"""RFT, rejection fine-tuning: imitate the turns of those who won.

Yuan et al. 2023, https://arxiv.org/abs/2308.01825. Also known as filtered behaviour cloning.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import Aggregation, RFTConfig
from unstable.learners.advantages import Floats
from unstable.learners.algorithm import Loss, Prepared, Tokens
from unstable.learners.losses import likelihood_loss
from unstable.learners.policy_gradient import PolicyGradient
from unstable.types import Sample


class RFT(PolicyGradient):
    """Maximum likelihood of won turns, each once; a batch in which nobody won is left out."""

    config: RFTConfig
    uses_old_logprobs = False

    def __init__(self, config: RFTConfig, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self.kept = 0
        self.updates_skipped = 0

    @property
    def aggregation(self) -> Aggregation:
        return self.config.aggregation

    @property
    def whole_in_step(self) -> bool:
        return self.config.aggregation == "sequence"

    def advantages(self, samples: Sequence[Sample], rewards_S: Floats) -> Floats:
        return won_once(samples)

    def prepare(self, samples: Sequence[Sample]) -> Prepared:
        """Steps are made out of the samples with an advantage alone; without one there are none."""
        prepared = super().prepare(samples)
        kept_S = prepared.advantages_S > 0
        self.kept = int(kept_S.sum())
        self.updates_skipped += self.kept == 0
        units = [unit[kept_S[unit]] for unit in prepared.units]
        return replace(prepared, units=[unit for unit in units if len(unit)])

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[Tensor] | None:
        """Of what is imitated; the rest, which no step sees, has none."""
        imitated = won_once(samples).nonzero()[0]
        scored = (
            super().reference_logprobs([samples[i] for i in imitated]) if len(imitated) else None
        )
        if scored is None:
            return None
        found = dict(zip(imitated.tolist(), scored, strict=True))
        return [found.get(place, torch.empty(0)) for place in range(len(samples))]

    def loss(self, tokens: Tokens) -> Loss:
        value = likelihood_loss(tokens.logprobs_N, normalizer=tokens.normalizers_N)
        return Loss(value=value, ratios_N=torch.ones_like(tokens.logprobs_N))

    def metrics(self) -> dict[str, float | None]:
        """Turns that were imitated, and updates that had none since the start."""
        return {
            "learn/rft_kept": float(self.kept),
            "learn/rft_skipped": float(self.updates_skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """The counter, and the policy that a KL refers to."""
        return super().state_dict() | {"updates_skipped": self.updates_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        super().load_state_dict(state)
        self.updates_skipped = state["updates_skipped"]


def won_once(samples: Sequence[Sample]) -> Floats:
    """1 for each sample [S] to imitate, 0 for the others.

    Imitated are the turns of a seat whose outcome is above 0 and who did not forfeit; of turns with
    the same prompt and the same answer the first.
    """
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    imitated_S = np.zeros(len(samples))
    for place, sample in enumerate(samples):
        turn = (tuple(sample.prompt_ids), tuple(sample.token_ids))
        if sample.outcome > 0 and not sample.forfeit and turn not in seen:
            seen.add(turn)
            imitated_S[place] = 1.0
    return imitated_S
