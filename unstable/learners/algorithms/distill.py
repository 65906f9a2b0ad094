"""Distillation on the policy's own turns: a teacher's choices are the only signal.

For another policy it is the divergence that the learner adds (GKD,
https://arxiv.org/abs/2306.13649); for a game's expert, the cross-entropy to its exact mix of
legal moves: DAgger whose data are the policy's own games, https://arxiv.org/abs/1011.0686.
"""

import numpy as np
import torch

from unstable.config import Aggregation, DistillConfig
from unstable.learners.algorithm import Algorithm, Loss, Tokens
from unstable.learners.batch import Examples, FlatBatch, Floats
from unstable.learners.expert import expert_entropy, expert_examples


class Distill(Algorithm):
    """Rewards do not count; by an expert, the mean over positions of -sum(share * log pi(move))."""

    config: DistillConfig

    def __init__(self, config: DistillConfig) -> None:
        super().__init__(config)
        self.by_expert = not config.uses_teacher
        self.uses_old_logprobs = config.uses_teacher  # later steps use ratios to it
        self.entropy: float | None = None

    @property
    def aggregation(self) -> Aggregation:
        return "sequence" if self.by_expert else "token"

    @property
    def whole_in_step(self) -> bool:
        return self.by_expert

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        return np.zeros(len(batch.samples))

    def examples(self, batch: FlatBatch, advantages_S: Floats) -> Examples:
        if not self.by_expert:
            return super().examples(batch, advantages_S)
        self.entropy = expert_entropy(batch)
        return expert_examples(batch)

    def loss(self, tokens: Tokens) -> Loss:
        losses_N = tokens.advantages_N * tokens.logprobs_N / tokens.normalizers_N
        return Loss(-losses_N.sum(), torch.ones_like(tokens.logprobs_N))

    def metrics(self) -> dict[str, float | None]:
        return {"learn/expert_entropy": self.entropy} if self.by_expert else {}
