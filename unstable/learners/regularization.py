"""KL to a reference and entropy: what they count, in the loss and in the reward.

With both, and a reference that moves, a policy gradient is magnetic mirror descent: Sokota et al.,
https://arxiv.org/abs/2206.05825.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.config import AlgorithmConfig
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.losses import kl_penalties, move_loss


class Coefficients(NamedTuple):
    """What KL and entropy count in one update."""

    kl_reward: float
    kl_loss: float
    entropy: float


def coefficients_at(config: AlgorithmConfig, update: int, updates: int) -> Coefficients:
    """The coefficients in the `update`-th of `updates`, from 1, as `decay` lowers them.

    linear: from 1 in the first update to `to` in the last. power: update^-exponent, with .3 as in
    https://arxiv.org/abs/2511.07312.
    """
    decay = config.decay
    share = 1.0
    if decay.rule == "linear":
        share = 1 - (1 - decay.to) * min(1.0, (update - 1) / max(1, updates - 1))
    elif decay.rule == "power":
        share = update**-decay.exponent
    return Coefficients(share * config.kl_reward, share * config.kl_loss, share * config.entropy)


def coefficient_metrics(config: AlgorithmConfig, now: Coefficients) -> dict[str, float | None]:
    """Those of what is asked for."""
    found: dict[str, float | None] = {}
    if config.uses_reference:
        found["learn/kl_weight"] = now.kl_reward + now.kl_loss
    if config.entropy:
        found["learn/entropy_weight"] = now.entropy
    return found


def regularized(
    loss: Callable[[Tokens], Loss], config: AlgorithmConfig, coefficients: Coefficients
) -> Callable[[Tokens], Loss]:
    """The loss plus a move's KL to the reference and minus its entropy, by their coefficients.

    Both are exact (`losses.move_loss`), if the tokens have them; where they have the reference's
    logprobs instead, the KL is its estimate k3.
    """
    if not config.uses_reference and not config.entropy:
        return loss

    def with_terms(tokens: Tokens) -> Loss:
        plain = loss(tokens)
        value, means, costs = plain.value, dict(plain.means), []
        if tokens.entropies_N is not None:
            costs.append(-coefficients.entropy * tokens.entropies_N)
        if tokens.kl_N is not None:
            costs.append(coefficients.kl_loss * tokens.kl_N)
            means["learn/kl_reference"] = tokens.kl_N
        elif tokens.reference_logprobs_N is not None:
            kl_N = kl_penalties(tokens.logprobs_N, tokens.reference_logprobs_N)
            value = value + coefficients.kl_loss * (kl_N / tokens.normalizers_N).sum()
            means["learn/kl_reference"] = kl_N
        if costs:
            value = value + move_loss(
                torch.stack(costs).sum(0),
                tokens.logprobs_N,
                tokens.old_logprobs_N,
                tokens.turns_N,
                cap=max(1.0, config.importance_cap),
                normalizer=tokens.normalizers_N,
            )
        return Loss(value, plain.ratios_N, means)

    return with_terms


def bounded(rewards_S: Floats, bounds: tuple[float, float] | None) -> Floats:
    """The rewards [S] within the bounds, if there are any."""
    return rewards_S if bounds is None else np.clip(rewards_S, *bounds)


def turn_kl(logprobs: Sequence[Tensor], reference: Sequence[Tensor]) -> Floats:
    """KL of each turn [S] to the reference, by the turn that was sampled.

    Schulman's k1, http://joschu.net/blog/kl-approx.html.
    """
    return np.array([float((a - b).sum()) for a, b in zip(logprobs, reference, strict=True)])


def opponents_kl(batch: FlatBatch, kl_S: Floats, *, per_turn: bool) -> Floats:
    """What turns [S] cost by the KL of their game's turns: the seat's own minus other seats'.

    The reward of R-NaD, https://arxiv.org/abs/2206.15378, with log-ratios in turns' sums. It is the
    sum over the own turns from this one on, minus that over the other seats' turns after it. With
    `per_turn` only what no later turn of the seat has: the turn's own KL minus that of other seats'
    turns until the seat's next one, so that the costs of later turns add up to the former. Turns
    are in the order of `Turn.index`; those that are not in the batch do not count.
    """
    costs_S = np.zeros(len(kl_S))
    games: dict[int, list[int]] = {}
    for place, owner in enumerate(batch.owners_S):
        games.setdefault(owner.game_id, []).append(place)
    for places in games.values():
        own: dict[int, float] = {}  # by seat: the KL of its turns from here on
        pending: dict[int, float] = {}  # by seat: what was after its next turn when that came
        total = 0.0  # of all seats' turns after this one
        for place in sorted(places, key=lambda place: -batch.samples[place].turn):
            seat, kl = batch.owners_S[place].seat, float(kl_S[place])
            others = total - own.get(seat, 0.0)
            own[seat] = own.get(seat, 0.0) + kl
            total += kl
            to_go = own[seat] - others
            costs_S[place] = to_go - pending.get(seat, 0.0) if per_turn else to_go
            pending[seat] = to_go
    return costs_S
