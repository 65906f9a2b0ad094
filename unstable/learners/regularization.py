"""KL to a reference or a teacher, and entropy: their terms in the loss and in the reward.

With both, and a reference that moves, a policy gradient is magnetic mirror descent: Sokota et al.,
https://arxiv.org/abs/2206.05825.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.config import AlgorithmConfig
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.losses import kl_penalties, move_loss


class Coefficients(NamedTuple):
    """Coefficients of KL and entropy in one update."""

    kl_reward: float
    kl_loss: float
    entropy: float
    teacher: float = 0.0

    def of(self, aim: str) -> float:
        """Return the coefficient of the divergence from a target in the loss."""
        return {"reference": self.kl_loss, "teacher": self.teacher}[aim]


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
    given = config.kl_reward, config.kl_loss, config.entropy, config.teacher.weight
    return Coefficients(*(share * weight for weight in given))


def coefficient_metrics(config: AlgorithmConfig, now: Coefficients) -> dict[str, float | None]:
    """Return the coefficients that the config uses, as metrics."""
    found: dict[str, float | None] = {}
    if config.uses_kl:
        found["learn/kl_weight"] = now.kl_reward + now.kl_loss
    if config.entropy:
        found["learn/entropy_weight"] = now.entropy
    if config.uses_teacher:
        found["learn/teacher_weight"] = now.teacher
    return found


def regularized(plain: Loss, tokens: Tokens, coefficients: Coefficients, cap: float) -> Loss:
    """The loss plus a move's divergences and minus its entropy, by their coefficients.

    They are exact (`losses.move_loss`, with importance weights up to `cap`, or 1 if that is more),
    where the tokens have them; where they have the reference's logprobs instead, the KL is its
    estimate k3; where they have neither, nothing is added.
    """
    value, means, costs = plain.value, dict(plain.means), []
    if tokens.entropies_N is not None:
        costs.append(-coefficients.entropy * tokens.entropies_N)
    for aim, divergences_N in tokens.divergences.items():
        costs.append(coefficients.of(aim) * divergences_N)
        means[f"learn/kl_{aim}"] = divergences_N
    if "reference" not in tokens.divergences and tokens.reference_logprobs_N is not None:
        kl_N = kl_penalties(tokens.logprobs_N, tokens.reference_logprobs_N)
        value = value + coefficients.kl_loss * (kl_N / tokens.normalizers_N).sum()
        means["learn/kl_reference"] = kl_N
    if costs:
        value = value + move_loss(
            torch.stack(costs).sum(0),
            tokens.logprobs_N,
            tokens.old_logprobs_N,
            tokens.turns_N,
            cap=max(1.0, cap),
            normalizer=tokens.normalizers_N,
        )
    return replace(plain, value=value, means=means)


def shaped_rewards(
    batch: FlatBatch,
    config: AlgorithmConfig,
    weight: float,
    old: Sequence[Tensor] | None,
    reference: Sequence[Tensor] | None,
    *,
    per_turn: bool,
) -> Floats:
    """Rewards [S] within their bounds, less `weight` times the KL of `old` to the reference.

    `per_turn`: a trajectory's own reward is paid at its last turn (see `FlatBatch`). An algorithm
    that compares trajectories by the mean of their turns' rewards has the KL's sum in each of them.
    Logprobs are None where the reward has no KL.
    """
    rewards_S = batch.turn_rewards_S if per_turn else batch.rewards_S
    if config.reward_clip is not None:
        rewards_S = np.clip(rewards_S, *config.reward_clip)
    if old is None or reference is None:
        return rewards_S
    kl_S = turn_kl(old, reference)
    if config.kl_opponents:
        kl_S = opponents_kl(batch, kl_S, per_turn=per_turn or config.grouped)
    if config.grouped:
        kl_T = np.zeros(len(batch.trajectories))
        np.add.at(kl_T, batch.trajectories_S, kl_S)
        kl_S = kl_T[batch.trajectories_S]
    return rewards_S - weight * kl_S


def turn_kl(logprobs: Sequence[Tensor], reference: Sequence[Tensor]) -> Floats:
    """KL of each turn [S] to the reference, by the turn that was sampled.

    Schulman's k1, http://joschu.net/blog/kl-approx.html.
    """
    return np.array([float((a - b).sum()) for a, b in zip(logprobs, reference, strict=True)])


def opponents_kl(batch: FlatBatch, kl_S: Floats, *, per_turn: bool) -> Floats:
    """Compute the costs of turns [S] from the KL of their game: the seat's own minus other seats'.

    The reward of R-NaD, https://arxiv.org/abs/2206.15378, with a turn's sum of log-ratios. It is
    the sum over the own turns from this one on, minus the sum over other seats' turns after it.
    With `per_turn` only the part that no later turn of the seat has: the turn's own KL minus other
    seats' until the seat's next turn, so that the costs of later turns add up to the former. Turns
    are in the order of `Turn.index`; turns outside of the batch do not count.
    """
    costs_S = np.zeros(len(kl_S))
    games: dict[int, list[int]] = {}
    for index, owner in enumerate(batch.owners_S):
        games.setdefault(owner.game_id, []).append(index)
    for indices in games.values():
        own: dict[int, float] = {}  # by seat: KL of its turns from here on
        pending: dict[int, float] = {}  # by seat: cost to go at its next turn
        total = 0.0  # KL of all seats' later turns
        for index in sorted(indices, key=lambda index: -batch.samples[index].turn):
            seat, kl = batch.owners_S[index].seat, float(kl_S[index])
            others = total - own.get(seat, 0.0)
            own[seat] = own.get(seat, 0.0) + kl
            total += kl
            to_go = own[seat] - others
            costs_S[index] = to_go - pending.get(seat, 0.0) if per_turn else to_go
            pending[seat] = to_go
    return costs_S
