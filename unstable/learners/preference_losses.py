"""Losses of preferences: pure functions, elementwise, of log-probabilities of whole answers.

A pair's margin is the log-ratio of the chosen answer, log(policy / reference), minus the rejected
answer's, in nats: the policy's preference. Losses are of each pair, or of each answer; the
caller takes the mean.
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def logistic_losses(scores: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """-(1 - s) log sigmoid(score) - s log sigmoid(-score), with s the label smoothing.

    DPO's, https://arxiv.org/abs/2305.18290, where the score is beta x margin. With smoothing cDPO's
    (Mitchell, https://ericmitchell.ai/cdpo.pdf): labels are wrong in that share of the pairs, and
    the loss is least where sigmoid(score) is 1 - s.
    """
    right, wrong = logsigmoid(scores), logsigmoid(-scores)
    return -(1 - label_smoothing) * right - label_smoothing * wrong


def length_regularized(scores: Tensor, longer: Tensor, weight: float) -> Tensor:
    """Scores plus weight x the tokens that the chosen answer has more than the rejected one.

    R-DPO, https://arxiv.org/abs/2403.19159: part of the preference for a longer answer is due to
    its length, so that the policy learns less of it.
    """
    return scores + weight * longer


def kto_losses(log_ratios: Tensor, desirable: Tensor, *, kl: float, beta: float) -> Tensor:
    """1 - sigmoid(+-beta (log-ratio - kl)), + for desirable answers, - for the others.

    KTO, https://arxiv.org/abs/2402.01306; `kl` is its z0, the KL(policy || reference) to which
    log-ratios are compared: a constant, never negative.
    """
    gains = beta * (log_ratios - kl)
    return 1 - torch.sigmoid(torch.where(desirable, gains, -gains))
