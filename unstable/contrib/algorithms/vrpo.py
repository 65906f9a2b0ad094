"""VRPO: PPO's clipped ratios, with advantages from an action-value critic Q(o, a) of legal moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235: an advantage is a move's value minus the mean
over the policy's moves, which removes the variance of this move's choice and of the seat's later
ones. The paper's critic sees all hands; this one is part of the policy's model, and so reads only
the seat's observation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from unstable.config import ActionCriticConfig, ConfigError, VRPOConfig
from unstable.learners.advantages import generalized_advantages
from unstable.learners.batch import FlatBatch, Floats, Ints, Mask
from unstable.learners.clipped import Surrogate
from unstable.learners.critic import Critic, Estimate
from unstable.learners.model.policy import Scores
from unstable.learners.scoring import Scorer
from unstable.types import SampledTokens, Segment, TokenSample


class ActionCritic(Critic):
    """Critic Q(o, a), from the hidden state that predicts a turn's last token, after the move."""

    config: ActionCriticConfig

    def read(self, samples: Sequence[TokenSample]) -> list[TokenSample]:
        """Return the samples with prompts and answers."""
        return list(samples)

    def states(self, scores: Scores) -> Tensor:
        """Return the hidden states before the answers' last tokens."""
        return scores.ends_SD

    def estimate(self, batch: FlatBatch, rewards_S: Floats, scorer: Scorer) -> Estimate:
        """Estimate by Q of each answer, and by V, the mean of Q over the policy's moves.

        Raises `ConfigError` if the turns' legal moves were not recorded.
        """
        config = self.config
        asked = Moves([sample.tokens for sample in batch.samples])
        logprobs_A, values_A = self._scored(asked.answers, scorer)
        actions_S, values_S = asked.values(logprobs_A, values_A)
        where = batch.trajectories_S, [sample.turn for sample in batch.samples]
        steps = rewards_S, actions_S, values_S, asked.legal_S, *where
        gamma = config.gamma
        advantages_S, _ = action_advantages(*steps, gamma=gamma, decay=config.sarsa_lambda)
        _, targets_S = action_advantages(*steps, gamma=gamma, decay=config.target_lambda)
        returns_S = generalized_advantages(
            rewards_S, np.zeros_like(rewards_S), *where, gamma=gamma, decay=1.0
        )
        return self.estimated(batch, advantages_S, actions_S, targets_S, returns_S)

    def _scored(self, answers: Sequence[TokenSample], scorer: Scorer) -> tuple[Floats, Floats]:
        """Return log-probabilities and values of answers [A], in one pass if they share a model."""

        def value(scores: Scores) -> Tensor:
            return self.values(self.states(scores))

        if self.own is None:
            logprobs, values_A = scorer.logprobs_and_values(answers, value)
        else:
            logprobs = scorer.logprobs(answers)
            with self.in_place():
                values_A = scorer.values(answers, value)
        sums = [float(each.double().sum()) for each in logprobs]
        return np.array(sums), values_A.double().numpy()


class _Key(NamedTuple):
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    temperature: float


class Moves:
    """The legal moves and answers of turns [S], without duplicates: A answers to score."""

    def __init__(self, turns: Sequence[SampledTokens]) -> None:
        if lacking := sum(not turn.moves for turn in turns):
            raise ConfigError(
                f"learner.algorithm.name = 'vrpo': {lacking} of {len(turns)} turns were recorded "
                "without legal moves (sampling.moves = none); start a new run or choose another "
                "algorithm"
            )
        self.answers: list[TokenSample] = []
        self._places: dict[_Key, int] = {}
        self._owners_M: Ints = np.repeat(np.arange(len(turns)), [len(t.moves) for t in turns])
        moves = [(turn, move.token_ids) for turn in turns for move in turn.moves]
        self._moves_M = np.array([self._place(*move) for move in moves])
        self._answered_S = np.array([self._place(turn, turn.token_ids) for turn in turns])
        self.legal_S: Mask = np.array([turn.move is not None for turn in turns])

    def _place(self, turn: SampledTokens, token_ids: list[int]) -> int:
        """Return the index of an answer among the answers to score, and add it if it is new."""
        key = _Key(tuple(turn.prompt_ids), tuple(token_ids), turn.temperature)
        if key not in self._places:
            self._places[key] = len(self.answers)
            self.answers.append(
                TokenSample(
                    prompt_ids=turn.prompt_ids,
                    segments=(Segment(token_ids=token_ids),),
                    temperature=turn.temperature,
                )
            )
        return self._places[key]

    def values(self, logprobs_A: Floats, values_A: Floats) -> tuple[Floats, Floats]:
        """Return each turn's Q of its answer, and the mean of Q over its moves.

        Weights are the policy's probabilities, normalized over the legal moves.
        """
        owners_M, logprobs_M = self._owners_M, logprobs_A[self._moves_M]
        most_S = np.full(len(self.legal_S), -np.inf)
        np.maximum.at(most_S, owners_M, logprobs_M)
        shares_M = np.exp(logprobs_M - most_S[owners_M])
        sums_S = np.bincount(owners_M, weights=shares_M * values_A[self._moves_M])
        return values_A[self._answered_S], sums_S / np.bincount(owners_M, weights=shares_M)


def action_advantages(
    rewards_S: Floats,
    actions_S: Floats,
    values_S: Floats,
    legal_S: Mask,
    trajectories_S: Ints,
    turns_S: Sequence[int],
    *,
    gamma: float,
    decay: float,
) -> tuple[Floats, Floats]:
    """Compute advantages and targets of action values [S] along trajectories; any order of turns.

    With Q(o, a) of each turn's answer, and V(o), the mean of Q over the policy's legal moves:
    A = Q - V + decay * sum over k of (gamma * decay)^k * (reward + gamma * next V - Q), k turns
    later, and target = Q + that sum: Expected SARSA(lambda), as in VRPO,
    https://arxiv.org/abs/2605.19235. A is the lambda-weighted mean of all n-step estimates,
    including Q - V (n = 0). With `decay` 1 it is unbiased for any Q: the control variates Q - V of
    later turns have a mean of 0 over the policy's moves. Illegal answers have no control variate,
    since V does not include them.
    """
    controls_S = np.where(legal_S, actions_S - values_S, 0.0)
    # GAE gives the errors relative to V; subtracting the controls gives the errors relative to Q.
    rest_S = generalized_advantages(
        rewards_S - controls_S, values_S, trajectories_S, turns_S, gamma=gamma, decay=decay
    )
    errors_S = rest_S - np.where(legal_S, 0.0, actions_S - values_S)
    return actions_S - values_S + decay * errors_S, actions_S + errors_S


class VRPO(Surrogate):
    """Clipped policy gradients with a critic Q(o, a) and exact probabilities of the legal moves."""

    config: VRPOConfig
    critic_class = ActionCritic
