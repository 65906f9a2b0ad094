"""The action critic: Q of every legal move, from the whole state, and the gradient over all moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235: what a seat cannot see is noise to a critic
that sees the seat's view alone, and a sampled move has a noisier gradient than all moves weighted
by their probabilities.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.config import ActionCriticConfig
from unstable.learners.advantages import explained_variance, normalize_by_env
from unstable.learners.batch import Examples, FlatBatch, Floats, Ints, Role
from unstable.learners.critic import Estimate
from unstable.learners.scoring import Scorer
from unstable.learners.turns import Key, Transitions, key_of
from unstable.learners.value_network import ValueNetwork
from unstable.types import TokenSample
from unstable.types.seeds import derive_seed

_BATCH = 1024
"""Turns of a step of the critic."""
_TARGETS = 5
"""How often an update computes the critic's targets anew."""


class Visits(NamedTuple):
    """Turns of an update with the current policy's logprobs and the critic's advantages."""

    turns: Transitions
    logprobs: list[Tensor]  # of each answer, by token
    advantages_M: Floats  # of the legal moves
    advantages_S: Floats  # of the answers


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
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=config.learning_rate, fused=True
        )
        self.replay: list[Transitions] = []

    def estimate(self, batch: FlatBatch, rewards_S: Floats, scorer: Scorer) -> Estimate:
        """Learn from the batch, then estimate by the values after it."""
        config = self.config
        turns = Transitions.of(batch, rewards_S, sees_state=config.sees == "state")
        self.replay = [*self.replay, turns][-config.replay :]
        unlisted = np.flatnonzero(~turns.listed_S)
        others = [batch.token_samples[index] for index in unlisted]
        *logprobs, old = _scored(scorer, [*(each.answers for each in self.replay), others])
        shares = [each.shares(found) for each, found in zip(self.replay, logprobs, strict=True)]
        numbers: dict[Key, int] = {}
        rows = [
            np.array([numbers.setdefault(key, len(numbers)) for key in each.pair_keys])
            for each in self.replay
        ]
        pairs = dict(
            zip(
                chain(*(each.pair_keys for each in self.replay)),
                chain(*(each.pairs for each in self.replay)),
                strict=True,
            )
        )
        features_PF = self.network.read([pairs[key] for key in numbers])
        places = [row[each.pairs_M] for row, each in zip(rows, self.replay, strict=True)]
        self._learn(shares, places, features_PF)
        self._updates += 1
        values_PK = self.network.values(features_PF)
        visits = [
            Visits(each, found, *self._advantages(each, shares_M, values_PK[places_M]))
            for each, found, shares_M, places_M in list(
                zip(self.replay, logprobs, shares, places, strict=True)
            )[-config.states :]
        ]
        advantages_S = visits[-1].advantages_S
        if config.gradient == "sampled":
            return Estimate(normalize_by_env(advantages_S, batch.envs_S, config.normalize))
        moves = MovesVisited.of(visits)
        return Estimate(
            advantages_S,
            examples=moves.examples(
                batch, unlisted, advantages_S[unlisted], mirror=config.gradient == "mirror"
            ),
            logprobs=[*moves.logprobs, *old],
        )

    def _learn(self, shares: Sequence[Floats], places: Sequence[Ints], features_PF: Tensor) -> None:
        """Step the network on turns of the replay."""
        rng = np.random.default_rng(derive_seed(self._seed, "critic", self._updates))
        steps, losses = self.config.steps, []
        chosen_R = torch.from_numpy(
            np.concatenate(
                [
                    places_M[each.chosen_S[each.listed_S]]
                    for places_M, each in zip(places, self.replay, strict=True)
                ]
            )
        )
        known_RK = np.concatenate([each.known_SK[each.listed_S] for each in self.replay])
        known_RK = torch.from_numpy(known_RK).float()
        targets_RK = torch.empty(0)
        for step in range(steps):
            if step % max(1, steps // _TARGETS) == 0:
                targets_RK = self._targets(shares, places, features_PF)
            rows_B = torch.from_numpy(rng.integers(0, len(chosen_R), _BATCH))
            values_BK = self.network(features_PF[chosen_R[rows_B]])
            errors_BK = (values_BK - targets_RK[rows_B]) * known_RK[rows_B]
            loss = (errors_BK**2).sum() / known_RK[rows_B].sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        self.metrics = {"learn/value_loss": losses[-1] / 2 if losses else None}

    def _targets(
        self, shares: Sequence[Floats], places: Sequence[Ints], features_PF: Tensor
    ) -> Tensor:
        """Targets [R, K] of the replay's listed moves."""
        values_PK = self.network.values(features_PF)
        found = []
        for turns, shares_M, places_M in zip(self.replay, shares, places, strict=True):
            values_SK = turns.means(shares_M, values_PK[places_M])
            targets_SK = turns.rewards_SK + turns.following(values_SK)
            found.append(targets_SK[turns.listed_S])
        return torch.from_numpy(np.concatenate(found)).float()

    def _advantages(
        self, turns: Transitions, shares_M: Floats, values_MK: Floats
    ) -> tuple[Floats, Floats]:
        """Advantages of a batch's legal moves [M] and of its answers [S]."""
        values_SK = turns.means(shares_M, values_MK)
        everyone, seats_S = np.arange(len(turns.seats_S)), turns.seats_S
        values_M = values_MK[np.arange(len(turns.owners_M)), seats_S[turns.owners_M]]
        values_S = values_SK[everyone, seats_S]
        targets_S = (turns.rewards_SK + turns.following(values_SK))[everyone, seats_S]
        played_S = np.where(turns.listed_S, values_M[turns.chosen_S], targets_S)
        self.metrics["learn/value_mean"] = float(values_S.mean())
        errors_S = targets_S - played_S
        self.metrics["learn/explained_variance"] = explained_variance(played_S, errors_S)
        return values_M - values_S[turns.owners_M], played_S - values_S

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


class MovesVisited(NamedTuple):
    """The legal moves [L] of each prompt, without duplicates, with their visits."""

    samples: list[TokenSample]
    roles: list[Role]
    logprobs: list[Tensor]  # by token
    visits_L: Floats  # mean number per update
    advantages_L: Floats  # mean over the visits

    @classmethod
    def of(cls, visits: Sequence[Visits]) -> "MovesVisited":
        """Join the moves of equal prompts: the gradient of the whole is that of all turns."""
        found: dict[Key, int] = {}
        made = cls([], [], [], np.empty(0), np.empty(0))
        rows = []
        for turns, logprobs, *_ in visits:
            owners_A = np.zeros(len(turns.answers), int)
            owners_A[turns.answers_M] = turns.owners_M
            places_A = np.array([found.setdefault(key, len(found)) for key in turns.answer_keys])
            for index in np.flatnonzero(places_A >= len(made.samples)):
                made.samples.append(turns.answers[index])
                made.roles.append(turns.roles_S[owners_A[index]])
                made.logprobs.append(logprobs[index])
            rows.append(places_A[turns.answers_M])
        rows_V = np.concatenate(rows)
        visits_L = np.bincount(rows_V).astype(np.float64)
        sums_L = np.bincount(rows_V, np.concatenate([each.advantages_M for each in visits]))
        return made._replace(visits_L=visits_L / len(visits), advantages_L=sums_L / visits_L)

    def examples(
        self, batch: FlatBatch, unlisted: Ints, advantages_U: Floats, *, mirror: bool
    ) -> Examples:
        """Return every move as an example, weighted by its visits and its probability.

        Answers that are not listed, such as illegal ones, remain as they were sampled.
        """
        samples = [*self.samples, *(batch.token_samples[index] for index in unlisted)]
        shares_L = np.exp([float(each.double().sum()) for each in self.logprobs])
        if mirror:
            shares_L = np.ones_like(shares_L)
        weights = np.concatenate([self.visits_L * shares_L, np.ones(len(unlisted))])
        lengths = np.array([sample.num_scored for sample in samples])
        prompts: dict[tuple[int, ...], int] = {}
        sequences = [prompts.setdefault(tuple(s.prompt_ids), len(prompts)) for s in samples]
        return Examples(
            samples=samples,
            roles_S=[*self.roles, *(batch.roles_S[index] for index in unlisted)],
            sequences_S=np.array(sequences),
            advantages_S=np.concatenate([self.advantages_L, advantages_U]),
            weights_S=weights * lengths.sum() / (weights * lengths).sum(),
            chosen=np.arange(len(samples)),
            behavior=None,
        )


def _scored(scorer: Scorer, lists: Sequence[Sequence[TokenSample]]) -> list[list[Tensor]]:
    """Log-probabilities of lists of samples under the current policy, in one pass."""
    keys = [[key_of(each) for each in samples] for samples in lists]
    asked = dict(zip(chain(*keys), chain(*lists), strict=True))
    found = dict(zip(asked, scorer.logprobs([*asked.values()]), strict=True))
    return [[found[key] for key in row] for row in keys]
