"""RFT, rejection fine-tuning: imitate the turns of those who won.

Yuan et al. 2023, https://arxiv.org/abs/2308.01825. Also known as filtered behavior cloning.
"""

from typing import Any

import numpy as np

from unstable.config import Aggregation, RFTConfig
from unstable.learners.algorithm import Imitation
from unstable.learners.batch import FlatBatch, Floats, Mask


class RFT(Imitation):
    """Maximum likelihood of won turns, each once; a batch without a win is skipped."""

    config: RFTConfig

    def __init__(self, config: RFTConfig) -> None:
        super().__init__(config)
        self.kept = self.updates_skipped = 0

    @property
    def aggregation(self) -> Aggregation:
        return self.config.aggregation

    @property
    def whole_in_step(self) -> bool:
        return self.config.aggregation == "sequence"

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        """1 for a turn of a seat that won and did not forfeit, if it is the first of its like."""
        first: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        for index, (sample, owner) in enumerate(zip(batch.samples, batch.owners_S, strict=True)):
            if owner.outcome > 0 and not owner.forfeit:
                turn = (tuple(sample.tokens.prompt_ids), tuple(sample.tokens.token_ids))
                first.setdefault(turn, index)
        return np.isin(np.arange(len(batch.samples)), list(first.values())).astype(np.float64)

    def trained(self, batch: FlatBatch, advantages_S: Floats) -> Mask:
        kept_S: Mask = advantages_S > 0
        self.kept = int(kept_S.sum())
        self.updates_skipped += self.kept == 0
        return kept_S

    def metrics(self) -> dict[str, float | None]:
        kept, skipped = float(self.kept), float(self.updates_skipped)
        return {"learn/rft_kept": kept, "learn/rft_skipped": skipped}

    def state_dict(self) -> dict[str, Any]:
        return {"updates_skipped": self.updates_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates_skipped = state["updates_skipped"]
