"""Losses: pure functions of token tensors.

Each divides by a normalizer of the whole optimizer step, so that the losses of mini-batches add up
to the loss of the step, however it is split.
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Beyond this a ratio is as good as infinite; within it, its exponential is finite."""


def log_ratios(logprobs_N: Tensor, behaviour_logprobs_N: Tensor) -> Tensor:
    """How much likelier, in nats, each token [N] is now than when it was sampled; no gradient."""
    differences_N = logprobs_N.detach() - behaviour_logprobs_N
    return differences_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def reinforce_loss(
    logprobs_N: Tensor,
    behaviour_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    cap: float,
    normalizer: float,
) -> tuple[Tensor, Tensor]:
    """REINFORCE with truncated importance weights: the loss, and the ratios [N] before the cap.

    loss = -sum(min(ratio, cap) * advantage * logprob) / normalizer, the weight being a constant.
    Truncated importance sampling: Ionides 2008, https://doi.org/10.1198/106186008X320456. A token
    whose advantage is zero contributes exactly zero.
    """
    ratios_N = log_ratios(logprobs_N, behaviour_logprobs_N).exp()
    weights_N = ratios_N.clamp(max=cap)
    return -(weights_N * advantages_N * logprobs_N).sum() / normalizer, ratios_N


def kl_estimates(logprobs_N: Tensor, behaviour_logprobs_N: Tensor) -> Tensor:
    """Estimates [N], never negative, of KL(behaviour || now) from tokens that behaviour sampled.

    ratio - 1 - log(ratio), Schulman's k3: http://joschu.net/blog/kl-approx.html.
    """
    log_ratios_N = log_ratios(logprobs_N, behaviour_logprobs_N)
    return torch.expm1(log_ratios_N) - log_ratios_N
