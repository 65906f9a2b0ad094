"""A custom algorithm: REINFORCE whose advantage is the rank of the reward.

    unstable train --config tiny_kuhn --learner.algorithm.name examples.ranked:Ranked \\
        --learner.algorithm.old_logprobs learner

Ranks do not depend on the scale of payoffs, and one enormous payoff moves the policy no more than
any other best result.
"""

import numpy as np

import unstable
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.batch import FlatBatch, Floats


class Ranked(unstable.Algorithm):
    """Advantages from -1 (the least reward of an env in the batch) to 1; ties get the same."""

    uses_old_logprobs = False

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        advantages_S = np.zeros_like(rewards_S)
        for env in set(batch.envs_S):
            own_S = np.asarray(batch.envs_S) == env
            rewards = rewards_S[own_S]
            below = np.searchsorted(np.sort(rewards), rewards, side="left")
            above = len(rewards) - np.searchsorted(np.sort(rewards), rewards, side="right")
            advantages_S[own_S] = (below - above) / len(rewards)
        return advantages_S

    def loss(self, tokens: Tokens) -> Loss:
        ratios_N = (tokens.logprobs_N - tokens.behavior_logprobs_N).detach().exp()
        weights_N = ratios_N.clamp(max=2.0) * tokens.advantages_N / tokens.normalizers_N
        return Loss(-(weights_N * tokens.logprobs_N).sum(), ratios_N)
