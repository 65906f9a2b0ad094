"""What algorithms with a critic have in common: advantages and targets out of its values.

Generalised advantages: Schulman et al. 2015, https://arxiv.org/abs/1506.02438.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import A2CConfig, PPOConfig
from unstable.learners.advantages import (
    Floats,
    explained_variance,
    generalized_advantages,
    normalize_by_env,
    trajectories,
    turn_rewards,
)
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.critic import Critic
from unstable.learners.losses import value_loss
from unstable.learners.policy_gradient import PolicyGradient
from unstable.types import Sample


class ActorCritic(PolicyGradient):
    """Advantages along a seat's turns, and the loss of the critic that they come from.

    A batch's values are taken once, before its first optimizer step, in a pass over the prompts
    alone. So are the targets: those values plus the advantages, before these are normalised.
    """

    config: PPOConfig | A2CConfig

    def __init__(self, config: PPOConfig | A2CConfig, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self.critic = Critic(config.critic, self.policy, self.optimizer)
        self.prompts: list[Sample] = []
        self.values_S = self.targets_S = np.empty(0)
        self.told: dict[str, float | None] = {}

    def rewards(self, samples: Sequence[Sample]) -> Floats:
        """Each turn's own reward: a game's outcome is paid once, at the seat's last turn."""
        return turn_rewards(samples)

    def advantages(self, samples: Sequence[Sample], rewards_S: Floats) -> Floats:
        config = self.config.critic
        self.prompts = [
            replace(sample, token_ids=sample.token_ids[:1], logprobs=sample.logprobs[:1])
            for sample in samples
        ]
        scored = self.scored(self.prompts, self.critic.score)
        self.values_S = torch.cat(scored).double().numpy()
        batch = (rewards_S, self.values_S, trajectories(samples), [s.turn for s in samples])
        advantages_S = generalized_advantages(*batch, gamma=config.gamma, decay=config.gae_lambda)
        residuals_S = generalized_advantages(*batch, gamma=config.gamma, decay=1.0)
        self.targets_S = self.values_S + advantages_S
        self.told = {
            "learn/value_mean": float(self.values_S.mean()),
            "learn/value_loss": float((advantages_S**2).mean()) / 2,
            "learn/explained_variance": explained_variance(self.values_S, residuals_S),
        }
        return normalize_by_env(advantages_S, [s.env for s in samples], config.normalize)

    def with_value_loss(self, loss: Loss, tokens: Tokens) -> Loss:
        """The policy's loss and the critic's, which have no parameter in common."""
        prompts = [self.prompts[place] for place in tokens.places_S]
        values_S = self.critic.values(prompts, tokens.states_SD)

        def frozen(numbers_S: Floats) -> Tensor:
            return torch.from_numpy(numbers_S[tokens.places_S]).to(values_S)

        value = value_loss(
            values_S,
            frozen(self.values_S),
            frozen(self.targets_S),
            clip=self.config.critic.value_clip,
            normalizer=tokens.num_turns,
        )
        return replace(loss, value=loss.value + value)

    def metrics(self) -> dict[str, float | None]:
        """Of the critic before the update."""
        return self.told

    def state_dict(self) -> dict[str, Any]:
        """The critic, and the policy that a KL refers to."""
        return super().state_dict() | {"critic": self.critic.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        super().load_state_dict(state)
        self.critic.load_state_dict(state["critic"])
