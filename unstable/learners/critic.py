"""The critic: values of observations, and the advantages computed from them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from unstable.config import CriticConfig
from unstable.learners.advantages import (
    explained_variance,
    generalized_advantages,
    normalize_by_env,
)
from unstable.learners.batch import Examples, FlatBatch, Floats
from unstable.learners.losses import value_loss
from unstable.learners.model.policy import Policy
from unstable.learners.model.trained import TrainedCopy
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.scoring import Scorer
from unstable.types import TokenSample


class Estimate(NamedTuple):
    """Advantages of turns [S], and with a critic its values and targets."""

    advantages_S: Floats
    values_S: Floats | None = None
    targets_S: Floats | None = None
    examples: Examples | None = None  # None: the algorithm's
    logprobs: list[Tensor] | None = None  # of the examples, under the policy before the update


class Critic:
    """V(o): a linear layer, initialized to 0, on the hidden state where a turn's prompt ends.

    The state is the policy's, which gets no gradient from it, or the state of the critic's own copy
    of the trained parameters, which steps at the policy's rate and costs an extra pass. It is
    scaled to a mean square of 1, as models differ in the length of their states.
    """

    def __init__(self, config: CriticConfig, policy: Policy, optimizer: PolicyOptimizer) -> None:
        self.config = config
        self.policy = policy
        self.metrics: dict[str, float | None] = {}  # before the update
        self.head = nn.Linear(policy.width, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        optimizer.add_group(self.head.parameters(), config.learning_rate)
        self.own = TrainedCopy(policy.trained) if config.kind == "adapter" else None
        if self.own is not None:
            optimizer.add_group(self.own.parameters, optimizer.config.learning_rate)

    def in_place(self) -> AbstractContextManager[None]:
        """Context in which the model has the critic's own parameters, if any."""
        return nullcontext() if self.own is None else self.own.in_place()

    def values(self, states_SD: Tensor) -> Tensor:
        """Values [S] of the turns' states."""
        values_S1: Tensor = self.head(F.rms_norm(states_SD.float(), states_SD.shape[1:]))
        return values_S1[:, 0]

    def estimate(self, batch: FlatBatch, rewards_S: Floats, scorer: Scorer) -> Estimate:
        """Generalized advantages by the values that a batch has before its first step.

        Schulman et al. 2015, https://arxiv.org/abs/1506.02438. The targets are the values plus the
        advantages, before these are normalized. Sets the metrics.
        """
        config = self.config
        with self.in_place():
            turns = _prompts(batch.token_samples)
            values = scorer.values(turns, lambda scores: self.values(scores.states_SD))
        values_S: Floats = values.double().numpy()
        turns_S = [sample.turn for sample in batch.samples]
        steps = (rewards_S, values_S, batch.trajectories_S, turns_S)
        advantages_S = generalized_advantages(*steps, gamma=config.gamma, decay=config.gae_lambda)
        residuals_S = generalized_advantages(*steps, gamma=config.gamma, decay=1.0)
        self.metrics = {
            "learn/value_mean": float(values_S.mean()),
            "learn/value_loss": float((advantages_S**2).mean()) / 2,
            "learn/explained_variance": explained_variance(values_S, residuals_S),
        }
        normalized_S = normalize_by_env(advantages_S, batch.envs_S, config.normalize)
        return Estimate(normalized_S, values_S, values_S + advantages_S)

    def backward(
        self,
        samples: Sequence[TokenSample],
        targets_S: Tensor,
        states_SD: Tensor,
        *,
        weight: float,
        num_turns: int,
    ) -> Tensor:
        """Backpropagate `weight` times the critic's loss of the samples; returns its value.

        The graph of the policy's loss is freed before, so that memory holds one graph at a time.
        `states_SD` are the policy's, `num_turns` counts the whole optimizer step.
        """
        with self.in_place():
            if self.own is not None:
                states_SD = self.policy(self.policy.inputs(_prompts(samples))).states_SD
            loss = weight * value_loss(self.values(states_SD), targets_S, normalizer=num_turns)
            loss.backward()
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves."""
        own = None if self.own is None else self.own.state_dict()
        return {"head": self.head.state_dict(), "own": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.head.load_state_dict(state["head"])
        if self.own is not None:
            self.own.load_state_dict(state["own"])


def _prompts(samples: Sequence[TokenSample]) -> list[TokenSample]:
    """Return the prompts without answers."""
    return [TokenSample(prompt_ids=sample.prompt_ids, segments=()) for sample in samples]
