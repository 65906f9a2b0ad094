"""The action critic: values Q of every legal move, and the policy gradient over all moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235. From the seat's view alone, all that it
cannot see is noise; and a sampled move has a noisier gradient than all moves by their
probabilities.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.config import ActionCriticConfig
from unstable.learners.advantages import explained_variance
from unstable.learners.all_moves import MovesVisited, Visits
from unstable.learners.batch import FlatBatch, Floats, Ints
from unstable.learners.critic import Estimate
from unstable.learners.losses import kl_estimates
from unstable.learners.scoring import Scorer
from unstable.learners.turns import Key, StateMove, Transitions
from unstable.learners.value_models import ValueModel
from unstable.types.seeds import derive_seed

_TARGETS = 5
"""How often an update computes the critic's targets."""


class _Recalled(NamedTuple):
    """Turns in the replay, with the policy's shares [M] and the pairs' indices [M] in the model."""

    turns: Transitions
    logprobs: list[Tensor]  # of each answer, by token
    shares_M: Floats
    pairs_M: Ints


class ActionCritic:
    """Action values of all seats, learned from the turns of recent updates by Expected SARSA.

    A target is the reward until the next turn plus the mean of the next turn's values over the
    current policy's moves (van Seijen et al. 2009, https://doi.org/10.1109/ADPRL.2009.4927542).
    With the whole state any seat may make the next turn, else the same seat does.
    """

    def __init__(self, config: ActionCriticConfig, model: ValueModel, seed: int) -> None:
        self.config, self.model, self._seed = config, model, seed
        self.metrics: dict[str, float | None] = {}
        self._updates = 0
        self._replay: list[Transitions] = []
        self._optimizer = torch.optim.Adam(model.parameters, lr=config.learning_rate, fused=True)

    def estimate(
        self,
        batch: FlatBatch,
        rewards_S: Floats,
        weights_S: Floats,
        scorer: Scorer,
        *,
        learns: bool = True,
    ) -> Estimate:
        """Learn from the batch, if it `learns`, then estimate its advantages by the new values.

        `weights_S` are the gradient weights of sampled answers.
        """
        config = self.config
        turns = Transitions.of(batch, rewards_S, sees_state=config.sees == "state")
        replay = [*self._replay, turns][-config.replay :]
        unlisted = np.flatnonzero(~turns.listed_S)
        others = [StateMove(batch.envs_S[i], batch.token_samples[i]) for i in unlisted.tolist()]
        *logprobs, others_logprobs = _scored(scorer, [*(each.answers for each in replay), others])
        places, pairs = _numbered(replay)
        self.model.take(pairs)
        recalled = [
            _Recalled(each, found, each.shares(found), row[each.pairs_M])
            for each, found, row in zip(replay, logprobs, places, strict=True)
        ]
        self.metrics = {}
        if learns:
            self._learn(recalled)
            self._replay, self._updates = replay, self._updates + 1
        values_PK = self.model.values()
        visits = [self._visits(each, values_PK) for each in recalled[-config.states :]]
        advantages_S = visits[-1].advantages_S
        self.metrics |= _mismatch(batch, visits[-1])
        if config.gradient == "sampled":
            return Estimate(advantages_S)
        moves = MovesVisited.of(visits)
        examples = moves.examples(batch, unlisted, advantages_S[unlisted], weights_S[unlisted])
        return Estimate(
            advantages_S, examples=examples, logprobs=[*moves.logprobs, *others_logprobs]
        )

    def _learn(self, replay: Sequence[_Recalled]) -> None:
        """Step the model on turns that are drawn from the replay."""
        rng = np.random.default_rng(derive_seed(self._seed, "critic", self._updates))
        config, losses = self.config, list[float]()
        pairs_R = np.concatenate(
            [each.pairs_M[each.turns.chosen_S[each.turns.listed_S]] for each in replay]
        )
        if not len(pairs_R):  # no answer was a listed move
            return
        known_RK = np.concatenate([each.turns.known_SK[each.turns.listed_S] for each in replay])
        targets_RK = np.empty(0)
        for step in range(config.steps):
            if step % -(-config.steps // _TARGETS) == 0:
                targets_RK = _targets(replay, self.model.values())
            rows_B = rng.integers(0, len(pairs_R), config.batch_size)
            drawn = (pairs_R[rows_B], targets_RK[rows_B], known_RK[rows_B])
            rows, targets, known = map(torch.from_numpy, drawn)
            self._optimizer.zero_grad()
            losses.append(self.model.backward(rows, targets.float(), known.float()))
            self._optimizer.step()
        self.metrics["learn/value_loss"] = float(np.mean(losses)) / 2

    def _visits(self, each: _Recalled, values_PK: Floats) -> Visits:
        """Return an update's turns with advantages."""
        turns, values_MK = each.turns, values_PK[each.pairs_M]
        values_SK = turns.means(each.shares_M, values_MK)
        targets_SK = turns.targets(values_SK)
        listed_S1 = turns.listed_S[:, None]
        played_SK = np.where(listed_S1, values_MK[turns.chosen_S], targets_SK)
        seats_S, everyone = turns.seats_S, np.arange(len(turns.seats_S))
        values_S, played_S = values_SK[everyone, seats_S], played_SK[everyone, seats_S]
        errors_S = (targets_SK - played_SK)[everyone, seats_S]
        self.metrics["learn/value_mean"] = float(values_S.mean())
        self.metrics["learn/explained_variance"] = explained_variance(played_S, errors_S)
        owners_M = turns.owners_M
        values_M = values_MK[np.arange(len(owners_M)), seats_S[owners_M]]
        advantages_M, advantages_S = values_M - values_S[owners_M], played_S - values_S
        if self.config.correction:
            # Answers that are not listed are no part of the values before them: all is an error.
            errors_SK = targets_SK - np.where(listed_S1, played_SK, values_SK)
            sums_SK = turns.sums_to_end(errors_SK) - np.where(listed_S1, 0.0, errors_SK)
            rest_S = sums_SK[everyone, seats_S]
            advantages_S = advantages_S + self.config.correction * rest_S
            chosen_L, rest_L = turns.chosen_S[turns.listed_S], rest_S[turns.listed_S]
            advantages_M[chosen_L] += self.config.correction * rest_L / each.shares_M[chosen_L]
        return Visits(turns, each.logprobs, advantages_M, advantages_S)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
            "replay": [each.packed for each in self._replay],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._updates = state["updates"]
        self._replay = [Transitions.unpacked(each) for each in state["replay"]]


def _targets(replay: Sequence[_Recalled], values_PK: Floats) -> Floats:
    """Targets [R, K] of the listed moves that were played."""
    found = []
    for turns, _, shares_M, pairs_M in replay:
        targets_SK = turns.targets(turns.means(shares_M, values_PK[pairs_M]))
        found.append(targets_SK[turns.listed_S])
    return np.concatenate(found)


def _numbered(replay: Sequence[Transitions]) -> tuple[list[Ints], list[StateMove]]:
    """Return the pairs of all updates without duplicates, and each update's indices in them."""
    numbers: dict[Key, int] = {}
    places = [
        np.array([numbers.setdefault(key, len(numbers)) for key in each.pair_keys])
        for each in replay
    ]
    keys = chain.from_iterable(each.pair_keys for each in replay)
    pairs = dict(zip(keys, chain.from_iterable(each.pairs for each in replay), strict=True))
    return places, [pairs[key] for key in numbers]


def _scored(scorer: Scorer, lists: Sequence[Sequence[StateMove]]) -> list[list[Tensor]]:
    """Log-probabilities of lists of answers under the current policy, in one pass."""
    keys = [[each.key for each in pairs] for pairs in lists]
    asked = dict(zip(chain(*keys), (pair.tokens for pair in chain(*lists)), strict=True))
    found = dict(zip(asked, scorer.logprobs([*asked.values()]), strict=True))
    return [[found[key] for key in row] for row in keys]


def _mismatch(batch: FlatBatch, visits: Visits) -> dict[str, float | None]:
    """Difference of learner and engine in the log-probabilities of the sampled listed moves."""
    turns = visits.turns
    listed = np.flatnonzero(turns.listed_S)
    if not len(listed):
        return {}
    answers = turns.answers_M[turns.chosen_S[listed]]
    own_N = torch.cat([visits.logprobs[index] for index in answers])
    engine_N = torch.cat([batch.behavior_logprobs[index] for index in listed])
    return {
        "learn/mismatch_kl": float(kl_estimates(own_N, engine_N).mean()),
        "learn/mismatch_abs_mean": float((own_N - engine_N).abs().mean()),
        "learn/mismatch_abs_max": float((own_N - engine_N).abs().max()),
    }
