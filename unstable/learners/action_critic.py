"""The action critic: Q of every legal move, from the whole state, and the gradient over all moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235: what a seat cannot see is noise to a critic
that sees the seat's view alone, and a sampled move has a noisier gradient than all moves weighted
by their probabilities.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.config import ActionCriticConfig
from unstable.learners.advantages import explained_variance, normalize_by_env
from unstable.learners.batch import Examples, FlatBatch, Floats, Role
from unstable.learners.critic import Estimate
from unstable.learners.scoring import Scorer
from unstable.learners.turns import Key, Transitions
from unstable.learners.value_network import ValueNetwork
from unstable.types import TokenSample
from unstable.types.seeds import derive_seed

_BATCH = 1024
"""Turns of a step of the critic."""
_TARGETS = 8
"""How often an update computes the critic's targets anew."""


class Advantages(NamedTuple):
    """Advantages of a batch's legal moves [M] and of its answers [S]."""

    advantages_M: Floats
    advantages_S: Floats
    metrics: dict[str, float | None]


class ActionCritic:
    """Action values of all seats, learned from recent turns by Expected SARSA.

    A target is the reward until the next turn of the game plus the mean of the next turn's values
    over the current policy's moves: van Seijen et al. 2009, https://doi.org/10.1109/ADPRL.2009.4927542.
    """

    def __init__(self, config: ActionCriticConfig, seed: int) -> None:
        self.config = config
        self.metrics: dict[str, float | None] = {}
        self._seed, self._updates = seed, 0
        self.network = ValueNetwork(derive_seed(seed, "critic") % 2**31)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)
        self.replay: list[Transitions] = []
        self._features: list[Tensor] = []  # of the replay's pairs

    def estimate(self, batch: FlatBatch, rewards_S: Floats, scorer: Scorer) -> Estimate:
        """Learn from the batch, then estimate by the values after it."""
        turns = Transitions.of(batch, rewards_S, sees_state=self.config.sees == "state")
        self.replay = [*self.replay, turns][-self.config.replay :]
        self._features = [*self._features, self.network.read(turns.pairs)][-self.config.replay :]
        logprobs = _scored(scorer, self.replay)
        shares = [each.shares(sums) for each, sums in zip(self.replay, logprobs, strict=True)]
        self._learn(shares, self._features)
        self._updates += 1
        estimates = [
            self._advantages(each, shares_M, features)
            for each, shares_M, features in zip(self.replay, shares, self._features, strict=True)
        ][-self.config.states :]
        advantages_S = estimates[-1].advantages_S
        self.metrics |= estimates[-1].metrics
        if self.config.gradient == "sampled":
            advantages_S = normalize_by_env(advantages_S, batch.envs_S, self.config.normalize)
            return Estimate(advantages_S)
        visits = [
            (each, logprobs_A, found.advantages_M)
            for each, logprobs_A, found in zip(
                self.replay[-len(estimates) :], logprobs[-len(estimates) :], estimates, strict=True
            )
        ]
        return Estimate(advantages_S, examples=all_moves(batch, visits, advantages_S))

    def _learn(self, shares: Sequence[Floats], features: Sequence[Tensor]) -> None:
        """Step the network on turns of the replay."""
        rng = np.random.default_rng(derive_seed(self._seed, "critic", self._updates))
        steps, losses = self.config.steps, []
        features_PF = _stacked(features)
        starts = np.cumsum([0, *(len(each.pairs) for each in self.replay)])
        pairs = [
            start + each.pairs_M[each.chosen_S[each.listed_S]]
            for start, each in zip(starts, self.replay, strict=False)
        ]
        chosen_R = np.concatenate(pairs)
        known_RK = np.concatenate([each.known_SK[each.listed_S] for each in self.replay])
        known_RK = torch.from_numpy(known_RK).float()
        targets_RK = torch.empty(0)
        for step in range(steps):
            if step % max(1, steps // _TARGETS) == 0:
                targets_RK = torch.from_numpy(self._targets(shares, features)).float()
            rows_B = torch.from_numpy(rng.integers(0, len(chosen_R), _BATCH))
            values_BK = self.network(features_PF[torch.from_numpy(chosen_R)[rows_B]])
            errors_BK = (values_BK - targets_RK[rows_B]) * known_RK[rows_B]
            loss = (errors_BK**2).sum() / known_RK[rows_B].sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        self.metrics = {"learn/value_loss": losses[-1] / 2 if losses else None}

    def _targets(self, shares: Sequence[Floats], features: Sequence[Tensor]) -> Floats:
        """Targets [R, K] of the replay's listed moves."""
        found = []
        for turns, shares_M, features_PF in zip(self.replay, shares, features, strict=True):
            values_SK = turns.means(shares_M, self.network.values(features_PF)[turns.pairs_M])
            targets_SK = turns.rewards_SK + turns.following(values_SK)
            found.append(targets_SK[turns.listed_S])
        return np.concatenate(found)

    def _advantages(self, turns: Transitions, shares_M: Floats, features_PF: Tensor) -> Advantages:
        """Advantages of a batch's legal moves and of its answers."""
        values_MK = self.network.values(features_PF)[turns.pairs_M]
        values_SK = turns.means(shares_M, values_MK)
        everyone, seats_S = np.arange(len(turns.seats_S)), turns.seats_S
        values_M = values_MK[np.arange(len(turns.owners_M)), seats_S[turns.owners_M]]
        values_S = values_SK[everyone, seats_S]
        targets_S = (turns.rewards_SK + turns.following(values_SK))[everyone, seats_S]
        played_S = np.where(turns.listed_S, values_M[turns.chosen_S], targets_S)
        metrics = {
            "learn/value_mean": float(values_S.mean()),
            "learn/explained_variance": explained_variance(played_S, targets_S - played_S),
        }
        return Advantages(values_M - values_S[turns.owners_M], played_S - values_S, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self._updates,
            "replay": [each.packed for each in self.replay],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._updates = state["updates"]
        self.replay = [Transitions.unpacked(each) for each in state["replay"]]
        self._features = [self.network.read(each.pairs) for each in self.replay]


def all_moves(
    batch: FlatBatch,
    visited: Sequence[tuple[Transitions, Floats, Floats]],
    advantages_S: Floats,
) -> Examples:
    """Return every legal move of each prompt as an example, weighted by visits and probability.

    `visited` are the turns of some updates, the batch's last, with their logprobs and advantages
    of moves. Equal prompts are one example with the mean of their advantages: the gradient is that
    of all turns. Answers that are not listed, such as illegal ones, remain as they were sampled.
    """
    numbers: dict[Key, int] = {}
    samples: list[TokenSample] = []
    roles, logprobs = list[Role](), list[float]()
    rows, advantages = [], []
    for turns, logprobs_A, advantages_M in visited:
        owners_A = np.zeros(len(turns.answers), int)
        owners_A[turns.answers_M] = turns.owners_M
        places_A = np.zeros(len(turns.answers), int)
        for index, key in enumerate(turns.keys):
            place = numbers.setdefault(key, len(samples))
            if place == len(samples):
                samples.append(turns.answers[index])
                roles.append(turns.roles_S[owners_A[index]])
                logprobs.append(float(logprobs_A[index]))
            places_A[index] = place
        rows.append(places_A[turns.answers_M])
        advantages.append(advantages_M)
    rows_V, advantages_V = np.concatenate(rows), np.concatenate(advantages)
    visits = np.bincount(rows_V).astype(float)
    means = np.bincount(rows_V, weights=advantages_V) / visits
    unlisted = np.flatnonzero(~visited[-1][0].listed_S)
    others = [batch.token_samples[index] for index in unlisted]
    samples += others
    weights = np.concatenate([visits / len(visited) * np.exp(logprobs), np.ones(len(others))])
    lengths = np.array([sample.num_scored for sample in samples])
    weights *= lengths.sum() / (weights * lengths).sum()
    prompts: dict[tuple[int, ...], int] = {}
    sequences = [prompts.setdefault(tuple(s.prompt_ids), len(prompts)) for s in samples]
    return Examples(
        samples=samples,
        roles_S=[*roles, *(batch.roles_S[index] for index in unlisted)],
        sequences_S=np.array(sequences),
        advantages_S=np.concatenate([means, advantages_S[unlisted]]),
        weights_S=weights,
        chosen=np.arange(len(samples)),
        behavior=None,
    )


def _scored(scorer: Scorer, replay: Sequence[Transitions]) -> list[Floats]:
    """Log-probabilities [A] of each batch's answers under the current policy, in one pass."""
    asked = {
        key: sample
        for turns in replay
        for key, sample in zip(turns.keys, turns.answers, strict=True)
    }
    sums = [float(each.double().sum()) for each in scorer.logprobs([*asked.values()])]
    found = dict(zip(asked, sums, strict=True))
    return [np.array([found[key] for key in turns.keys]) for turns in replay]


def _stacked(features: Sequence[Tensor]) -> Tensor:
    widest = max(each.shape[1] for each in features)
    padded = [torch.nn.functional.pad(each, (0, widest - each.shape[1])) for each in features]
    return torch.cat(padded)
