"""REINFORCE with a baseline for each role and truncated importance weights.

Williams 1992, https://doi.org/10.1007/BF00992696; for self-play of language models: SPIRAL,
https://arxiv.org/abs/2506.24119.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from unstable.config import AlgorithmConfig
from unstable.learners.advantages import Floats, RoleBaseline, normalize_by_env
from unstable.learners.algorithm import StepReport
from unstable.learners.losses import reinforce_loss
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.packing import mini_batches, pack_samples
from unstable.learners.policy import Policy
from unstable.types import Sample


class Reinforce:
    """Implements `algorithm.Algorithm`."""

    def __init__(
        self,
        config: AlgorithmConfig,
        policy: Policy,
        optimizer: PolicyOptimizer,
        *,
        mini_batch_size: int,
        max_tokens: int,
    ) -> None:
        self.config = config
        self.policy = policy
        self.optimizer = optimizer
        self.mini_batch_size = mini_batch_size
        self.max_tokens = max_tokens
        self.baseline = RoleBaseline(config.baseline_decay)

    def advantages(self, samples: Sequence[Sample]) -> Floats:
        """Rewards minus their role's baseline, normalised within each env."""
        advantages_S = self.baseline.advantages(
            np.array([sample.reward for sample in samples]),
            roles=[(sample.env, sample.seat) for sample in samples],
            games=[sample.game_id for sample in samples],
        )
        return normalize_by_env(
            advantages_S, [sample.env for sample in samples], self.config.normalize
        )

    def step(self, samples: Sequence[Sample], advantages_S: Floats) -> StepReport:
        """One optimizer step on all samples; every token of a sample has the sample's advantage."""
        normalizer = self._normalizer(samples)
        learning_rate = self.optimizer.learning_rate
        loss = 0.0
        tokens = []
        device = next(self.policy.parameters()).device
        for chosen in mini_batches(samples, self.mini_batch_size):
            pack = pack_samples([samples[i] for i in chosen]).to(device)
            advantages = torch.tensor(advantages_S[chosen], dtype=torch.float32, device=device)
            logprobs_N, entropies_N = self.policy(pack)
            mini_loss, ratios_N = reinforce_loss(
                logprobs_N,
                pack.behaviour_N,
                advantages[pack.samples_N],
                cap=self.config.importance_cap,
                normalizer=normalizer,
            )
            mini_loss.backward()
            loss += mini_loss.item()
            tokens.append((logprobs_N.detach(), pack.behaviour_N, ratios_N, entropies_N))
        logprobs_N, behaviour_N, ratios_N, entropies_N = (
            torch.cat(part).cpu() for part in zip(*tokens, strict=True)
        )
        return StepReport(
            loss=loss,
            grad_norm=self.optimizer.step(loss),
            learning_rate=learning_rate,
            logprobs_N=logprobs_N,
            behaviour_logprobs_N=behaviour_N,
            ratios_N=ratios_N,
            entropies_N=entropies_N,
        )

    def _normalizer(self, samples: Sequence[Sample]) -> int:
        if self.config.loss_norm == "constant":
            return len(samples) * self.max_tokens
        return sum(len(sample.token_ids) for sample in samples)

    def metrics(self) -> dict[str, float | None]:
        """The baseline of each role."""
        return {
            f"learn/baseline/{env}/{seat}": value
            for (env, seat), value in self.baseline.values.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The baselines."""
        return {"baseline": self.baseline.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.baseline.load_state_dict(state["baseline"])
