"""Losses: pure functions of token tensors.

Each divides by a normalizer of the whole optimizer step, so that the losses of micro-batches add up
to the loss of the step, however it is split.
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Bound of log-ratios in nats, so that ratios stay finite."""


def log_ratios(logprobs_N: Tensor, behavior_logprobs_N: Tensor) -> Tensor:
    """Compute each token's [N] log-ratio, now minus when sampled, in nats; without gradient."""
    differences_N = logprobs_N.detach() - behavior_logprobs_N
    return differences_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def policy_ratios(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    sequences_N: Tensor | None = None,
    *,
    length_normalized: bool = False,
) -> Tensor:
    """Compute each token's [N] ratio of the policy to the old one, with gradient.

    A sequence's ratio is the product over its tokens, or their geometric mean (GSPO's,
    https://arxiv.org/abs/2507.18071); without sequences each token has its own ratio. Log-ratios
    are clamped to `MAX_LOG_RATIO`, beyond which the gradient is 0, so that ratios are finite.
    """
    differences_N = logprobs_N - old_logprobs_N
    if sequences_N is not None:
        differences_N = sequence_sums(differences_N, sequences_N, mean=length_normalized)
    return differences_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_loss(
    ratios_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    weights_N: Tensor | float = 1.0,
    normalizer: float | Tensor,
) -> Tensor:
    """PPO's clipped surrogate, https://arxiv.org/abs/1707.06347, with a bound for either side.

    loss = -sum(weight * min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) / normalizer). Bounds
    that differ: DAPO, https://arxiv.org/abs/2503.14476. Where A < 0 the minimum is at least
    dual_clip * A, since nothing else bounds it: https://arxiv.org/abs/1912.09729.
    """
    clipped_N = ratios_N.clamp(1 - clip_low, 1 + clip_high)
    gains_N = torch.minimum(ratios_N * advantages_N, clipped_N * advantages_N)
    if dual_clip is not None:
        bounded_N = torch.maximum(gains_N, dual_clip * advantages_N)
        gains_N = torch.where(advantages_N < 0, bounded_N, gains_N)
    return -(weights_N * gains_N / normalizer).sum()


def clipped_weight_loss(
    logprobs_N: Tensor,
    ratios_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    weights_N: Tensor | float = 1.0,
    normalizer: float | Tensor,
) -> Tensor:
    """CISPO, https://arxiv.org/abs/2506.13585: the ratio is clipped as a constant weight.

    loss = -sum(weight * clip(ratio, 1 - low, 1 + high) * A * logprob / normalizer): no token loses
    its gradient by the clip.
    """
    clipped_N = ratios_N.detach().clamp(1 - clip_low, 1 + clip_high)
    return -(weights_N * clipped_N * advantages_N * logprobs_N / normalizer).sum()


def value_loss(values_S: Tensor, targets_S: Tensor, *, normalizer: float) -> Tensor:
    """Half the squared error of the values [S]."""
    return 0.5 * ((values_S - targets_S) ** 2).sum() / normalizer


def likelihood_loss(logprobs_N: Tensor, *, normalizer: float | Tensor) -> Tensor:
    """Negative log-likelihood of the tokens [N]."""
    return -(logprobs_N / normalizer).sum()


def truncated_weights(log_ratios_N: Tensor, cap: float) -> Tensor:
    """Importance weights [N] up to `cap`: TIS, https://fengyao.notion.site/off-policy-rl."""
    return log_ratios_N.exp().clamp(max=cap)


def masked_weights(log_ratios_N: Tensor, low: float, high: float) -> Tensor:
    """Importance weights [N] in [low, high], zero for all others.

    IcePop of Ring-1T, https://arxiv.org/abs/2510.18855.
    """
    weights_N = log_ratios_N.exp()
    return torch.where((weights_N >= low) & (weights_N <= high), weights_N, 0.0)


def sequence_mask(log_ratios_N: Tensor, sequences_N: Tensor, low: float, high: float) -> Tensor:
    """1 for tokens [N] whose sequence's geometric mean ratio is in [low, high], 0 for all others.

    A sequence that is off in many tokens is off as a whole:
    https://verl.readthedocs.io/en/latest/algo/rollout_corr.html.
    """
    means_N = sequence_sums(log_ratios_N, sequences_N, mean=True).exp()
    return ((means_N >= low) & (means_N <= high)).to(log_ratios_N.dtype)


def kl_estimates(logprobs_N: Tensor, behavior_logprobs_N: Tensor) -> Tensor:
    """Estimates [N], never negative, of KL(behavior || now) from tokens that behavior sampled.

    ratio - 1 - log(ratio), Schulman's k3: http://joschu.net/blog/kl-approx.html.
    """
    log_ratios_N = log_ratios(logprobs_N, behavior_logprobs_N)
    return torch.expm1(log_ratios_N) - log_ratios_N


def kl_penalties(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """Estimates [N] of KL(now || reference), never negative, with gradient: k3, as in GRPO."""
    differences_N = reference_logprobs_N - logprobs_N
    clamped_N = differences_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(clamped_N) - clamped_N


def proximal_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    turns_N: Tensor,
    *,
    log_caps_N: Tensor,
    normalizer: float | Tensor,
) -> Tensor:
    """KL(now || old) over answers weighted by the old policy: ratio * log(ratio) - ratio + 1.

    Ratios are of whole turns; their tokens share a turn's term. It holds a step near the old policy
    where a clip only ends the gradient, as the Bregman divergence of mirror descent does:
    https://arxiv.org/abs/2005.09814. The gradient is min(ratio, cap) * log(ratio) * grad log prob,
    with caps given as logarithms: without one, a sampled answer of probability 1e-7 can outweigh
    all others of a step.
    """
    differences_N = logprobs_N - old_logprobs_N
    sums_N = sequence_sums(differences_N, turns_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    lengths_N = sequence_sums(torch.ones_like(sums_N), turns_N)
    below_N, above_N = torch.minimum(sums_N, log_caps_N), (sums_N - log_caps_N).clamp(min=0)
    terms_N = below_N.exp() * (below_N - 1) + 1
    terms_N = terms_N + log_caps_N.exp() * above_N * (log_caps_N + above_N / 2)
    return (terms_N / lengths_N / normalizer).sum()


def move_loss(
    costs_N: Tensor,
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    turns_N: Tensor,
    *,
    cap: float,
    normalizer: float | Tensor,
) -> Tensor:
    """Compute the expected sum over a turn of the costs [N] of its prefixes.

    A cost and its gradient depend on the policy and the preceding tokens, such as the entropy of
    the next token. With f_t the cost of prefix t, the gradient of E[sum f_t] over the answers is
    E[sum grad f_t + sum grad logprob_t * (f_{t+1} + f_{t+2} + ...)], since a token decides which
    prefixes follow; without the second sum it would be biased (Rao-Blackwellised divergences,
    https://arxiv.org/abs/2504.10637). Tokens of the old policy are weighted by the ratio of their
    prefix, at most `cap`, a constant. The score has no value, only a gradient. Tokens of a turn lie
    in a row, and turns in the order of `turns_N`.
    """
    moved_N = log_ratios(logprobs_N, old_logprobs_N)
    prefix_N = sums_before(moved_N, turns_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    costs_N = prefix_N.exp().clamp(max=cap) * costs_N
    score_N = sums_after(costs_N.detach(), turns_N) * (logprobs_N - logprobs_N.detach())
    return ((costs_N + score_N) / normalizer).sum()


def sums_before(values_N: Tensor, turns_N: Tensor) -> Tensor:
    """For each token [N] the sum of the values before it in its turn; turns lie in a row."""
    sums_N = values_N.double().cumsum(0) - values_N
    return (sums_N - sums_N[torch.searchsorted(turns_N, turns_N)]).to(values_N.dtype)


def sums_after(values_N: Tensor, turns_N: Tensor) -> Tensor:
    """For each token [N] the sum of the values after it in its turn; turns lie in a row."""
    sums_N = values_N.double().cumsum(0)
    ends_N = torch.searchsorted(turns_N, turns_N, right=True) - 1
    return (sums_N[ends_N] - sums_N).to(values_N.dtype)


def sequence_sums(values_N: Tensor, sequences_N: Tensor, *, mean: bool = False) -> Tensor:
    """For each token [N] the sum, or mean, of the values of its sequence; these count from 0.

    The sums have N rows, because counting the sequences would sync the GPU.
    """
    none_N = torch.zeros_like(values_N)
    sums_N = none_N.index_add(0, sequences_N, values_N)
    if mean:
        sums_N = sums_N / none_N.index_add(0, sequences_N, none_N + 1).clamp(min=1)
    return sums_N.index_select(0, sequences_N)  # deterministic gradient
