"""What algorithms with a critic have in common: advantages and targets out of its values.

Generalised advantages: Schulman et al. 2015, https://arxiv.org/abs/1506.02438.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
from unstable.learners.algorithm import Judgement, Tokens
from unstable.learners.critic import Critic
from unstable.learners.losses import value_loss
from unstable.learners.packing import pack_samples
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
        self.told: dict[str, float | None] = {}

    def rewards(self, samples: Sequence[Sample]) -> Floats:
        """Each turn's own reward: a game's outcome is paid once, at the seat's last turn."""
        return turn_rewards(samples)

    def judge(self, samples: Sequence[Sample], rewards_S: Floats) -> Judgement:
        config = self.config.critic
        with self.critic.in_place():
            scored = self.scored(prompts_of(samples), self.critic.score)
        values_S = torch.cat(scored).double().numpy()
        batch = (rewards_S, values_S, trajectories(samples), [s.turn for s in samples])
        advantages_S = generalized_advantages(*batch, gamma=config.gamma, decay=config.gae_lambda)
        residuals_S = generalized_advantages(*batch, gamma=config.gamma, decay=1.0)
        self.told = {
            "learn/value_mean": float(values_S.mean()),
            "learn/value_loss": float((advantages_S**2).mean()) / 2,
            "learn/explained_variance": explained_variance(values_S, residuals_S),
        }
        return Judgement(
            normalize_by_env(advantages_S, [s.env for s in samples], config.normalize),
            values_S=values_S,
            targets_S=values_S + advantages_S,
        )

    def backward_apart(self, tokens: Tokens, weight: float) -> Tensor:
        """The critic's loss, whose graph is alone in memory where the critic has its own LoRA."""
        assert tokens.values_S is not None and tokens.targets_S is not None
        with self.critic.in_place():
            if self.critic.lora is None:
                values_S = self.critic.values(tokens.states_SD)
            else:
                values_S = self.critic.score(
                    pack_samples(prompts_of(tokens.samples)).to(tokens.states_SD.device)
                )
            value = weight * value_loss(
                values_S,
                tokens.values_S,
                tokens.targets_S,
                clip=self.config.critic.value_clip,
                normalizer=tokens.num_turns,
            )
            value.backward()
        return value.detach()

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


def prompts_of(samples: Sequence[Sample]) -> list[Sample]:
    """The samples as short as a pack allows, with one sampled token each, which is no input."""
    return [
        replace(sample, token_ids=sample.token_ids[:1], logprobs=sample.logprobs[:1])
        for sample in samples
    ]
