"""The action critic: values Q of every legal move, and the policy gradient over all moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235. From the seat's view alone, all that it
cannot see is noise; and a sampled move has a noisier gradient than all moves by their
probabilities.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from unstable.config import ActionCriticConfig
from unstable.learners.advantages import explained_variance
from unstable.learners.all_moves import MovesVisited, probabilities
from unstable.learners.batch import FlatBatch, Floats, Ints
from unstable.learners.critic import Estimate
from unstable.learners.experience import Experience, Outcomes
from unstable.learners.losses import kl_estimates
from unstable.learners.scoring import Scorer
from unstable.learners.turns import Transitions
from unstable.learners.value_models import ValueModel
from unstable.types.information import move_information
from unstable.types.metrics import metric_name
from unstable.types.seeds import derive_seed

_TARGETS = 5
"""How often an update computes the critic's targets."""


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
        self._experience = Experience(config.sees)
        self._optimizer = torch.optim.Adam(model.parameters, lr=config.learning_rate, fused=True)

    def estimate(
        self,
        batch: FlatBatch,
        rewards_S: Floats,
        weights_S: Floats,
        scorer: Scorer,
        *,
        cap: float | None = None,
        learns: bool = True,
    ) -> Estimate:
        """Learn from the batch, if it `learns`, then estimate its advantages by the new values.

        `weights_S` are the gradient weights of sampled answers. Among all moves, sampled answers
        that are not listed have importance weights up to `cap`, or none.
        """
        config = self.config
        turns = Transitions.of(batch, rewards_S, sees_state=config.sees == "state")
        experience = self._experience.copy()
        points_S = experience.number(turns)
        unlisted = np.flatnonzero(~turns.listed_S)
        rng = np.random.default_rng(derive_seed(self._seed, "prompts", self._updates))
        examples_P, answers = experience.draw(points_S, rng)
        asked = [experience.answers.found[index].tokens for index in answers]
        logprobs = scorer.logprobs([*asked, *(batch.token_samples[i] for i in unlisted)])
        likely_M, shares_M = experience.score(answers, logprobs[: len(asked)])
        self.metrics = {}
        self.model.learns = learns
        self.model.take(experience.pairs.found)
        model_PK = self.model.values()
        before_PK = experience.values(experience.counted(), shares_M, model_PK)
        if learns:
            experience.count(turns, points_S)
        counted = experience.counted()
        if learns and len(counted.pairs_R):  # else no answer was a listed move
            model_PK = self._learn(experience, counted, shares_M, model_PK)
        values_PK = experience.values(counted, shares_M, model_PK)
        means_PK = experience.means(shares_M, values_PK)
        if learns:
            self._experience = experience.newest(config.replay, means_PK)
            self._updates += 1

        chosen_S = np.where(turns.listed_S, experience.starts_P[points_S] + turns.places_S, 0)
        played_S = experience.answers_M[chosen_S]
        self.metrics |= _information(experience, points_S, shares_M)
        self.metrics |= _mismatch(batch, turns, played_S, experience.logprobs)
        pairs_S, means_SK = experience.pairs_M[chosen_S], means_PK[points_S]
        advantages_S = self._of_turns(turns, means_SK, values_PK[pairs_S], before_PK[pairs_S])
        if config.gradient == "sampled":
            return Estimate(advantages_S)
        visits_P: Floats = np.bincount(points_S, minlength=len(experience.starts_P)).astype(float)
        if learns:  # else the counts lack these turns
            visits_P = experience.visits(counted, likely_M, points_S[turns.firsts])
        moves = MovesVisited.of(experience, examples_P, visits_P, values_PK, shares_M)
        own, counts_U = logprobs[len(asked) :], np.ones(len(unlisted))
        if cap is not None:
            behavior = [batch.behavior_logprobs[index] for index in unlisted]
            counts_U = np.minimum(probabilities(map(torch.sub, own, behavior)), cap)
        examples = moves.examples(
            batch, unlisted, advantages_S[unlisted], weights_S[unlisted], counts_U
        )
        return Estimate(advantages_S, examples=examples, logprobs=[*moves.logprobs, *own])

    def _of_turns(
        self, turns: Transitions, means_SK: Floats, moves_SK: Floats, before_SK: Floats
    ) -> Floats:
        """Compute the advantages [S] of the answers.

        `means_SK` are the values of the turns' states, `moves_SK` those of their listed moves, and
        `before_SK` the latter before the critic saw these turns.
        """
        of_seat, listed = (np.arange(len(means_SK)), turns.seats_S), turns.listed_S
        values_S, targets_S = means_SK[of_seat], turns.targets(means_SK)[of_seat]
        self.metrics["learn/value_mean"] = float(values_S.mean())
        before_S = before_SK[of_seat]
        errors_S = targets_S - before_S
        self.metrics["learn/explained_variance"] = (
            explained_variance(before_S[listed], errors_S[listed]) if listed.any() else None
        )
        advantages_S: Floats = np.where(listed, moves_SK[of_seat], targets_S) - values_S
        return advantages_S

    def _learn(
        self, experience: Experience, counted: Outcomes, shares_M: Floats, model_PK: Floats
    ) -> Floats:
        """Step the model on pairs that are drawn by the root of how often they were played.

        `model_PK` are its values before; returns those after.
        """
        rng = np.random.default_rng(derive_seed(self._seed, "critic", self._updates))
        config, losses = self.config, list[float]()
        for step in range(config.steps):
            if step % -(-config.steps // _TARGETS) == 0:
                model_PK = self.model.values() if step else model_PK
                values_PK = experience.values(counted, shares_M, model_PK)
                sums_PK, counts_PK = experience.targets(counted, shares_M, values_PK)
                known_PK = counts_PK > 0
                targets_PK = sums_PK / np.where(known_PK, counts_PK, 1.0)
                likely_P = np.sqrt(counts_PK.max(1))
            rows_B = rng.choice(len(likely_P), config.batch_size, p=likely_P / likely_P.sum())
            targets_BK, known_BK = targets_PK[rows_B], known_PK[rows_B]
            self._optimizer.zero_grad()
            rows, targets, known = map(torch.from_numpy, (rows_B, targets_BK, known_BK))
            losses.append(self.model.backward(rows, targets.float(), known.float()))
            self._optimizer.step()
            increment_version(self.model.parameters)  # a fused step does not; see PolicyOptimizer
        self.metrics["learn/value_loss"] = float(np.mean(losses)) / 2
        return self.model.values()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint saves."""
        return {
            "sees": self.config.sees,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
            "experience": self._experience.packed(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._optimizer.param_groups[0]["lr"] = self.config.learning_rate  # a fork may change it
        self._updates = state["updates"]
        self._experience = Experience.unpacked(state["experience"], self.config.sees)


def _information(
    experience: Experience, points_S: Ints, shares_M: Floats
) -> dict[str, float | None]:
    """Information of each env's moves about their observations, by the visits of an update."""
    answers, numbers = experience.answers.found, dict[tuple[int, ...], int]()
    keys = [tuple(answers[index].tokens.token_ids) for index in experience.answers_M]
    moves_M = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    envs_P = experience.envs_P
    visits_P = np.bincount(points_S, minlength=len(envs_P)).astype(np.float64)
    return {
        metric_name("learn/information", env): move_information(
            (visits_P * (envs_P == env))[experience.owners_M] * shares_M,
            experience.owners_M,
            moves_M,
        )
        for env in np.unique(envs_P[points_S]).tolist()
    }


def _mismatch(
    batch: FlatBatch, turns: Transitions, answers_S: Ints, logprobs: Sequence[Tensor]
) -> dict[str, float | None]:
    """Difference of learner and engine in the log-probabilities of the sampled listed moves."""
    listed = np.flatnonzero(turns.listed_S)
    if not len(listed):
        return {}
    own_N = torch.cat([logprobs[index] for index in answers_S[listed]])
    engine_N = torch.cat([batch.behavior_logprobs[index] for index in listed])
    return {
        "learn/mismatch_kl": float(kl_estimates(own_N, engine_N).mean()),
        "learn/mismatch_abs_mean": float((own_N - engine_N).abs().mean()),
        "learn/mismatch_abs_max": float((own_N - engine_N).abs().max()),
    }
