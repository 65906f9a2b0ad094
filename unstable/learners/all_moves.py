"""The policy gradient over all legal moves: each move of each prompt as a weighted example."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from unstable.learners.batch import Examples, FlatBatch, Floats, Ints, Role
from unstable.learners.turns import Key, Transitions
from unstable.types import TokenSample


class Visits(NamedTuple):
    """An update's turns with the current policy's logprobs and the critic's advantages."""

    turns: Transitions
    logprobs: list[Tensor]  # of each answer, by token
    advantages_M: Floats  # of the legal moves
    advantages_S: Floats  # of the answers


class MovesVisited(NamedTuple):
    """The legal moves [L] of each prompt, without duplicates, with their visits."""

    samples: list[TokenSample]
    roles: list[Role]
    logprobs: list[Tensor]  # by token
    visits_L: Floats  # mean number per update
    advantages_L: Floats  # mean over the visits

    @classmethod
    def of(cls, visits: Sequence[Visits]) -> Self:
        """Join the moves of equal prompts, whose gradient equals the sum over all turns."""
        numbers: dict[Key, int] = {}
        moves = cls([], [], [], np.empty(0), np.empty(0))
        rows = []
        for turns, logprobs, _, _ in visits:
            owners_A = np.zeros(len(turns.answers), int)
            owners_A[turns.answers_M] = turns.owners_M
            rows_A = np.array([numbers.setdefault(key, len(numbers)) for key in turns.answer_keys])
            for index in np.flatnonzero(rows_A >= len(moves.samples)):
                moves.samples.append(turns.answers[index].tokens)
                moves.roles.append(turns.roles_S[owners_A[index]])
                moves.logprobs.append(logprobs[index])
            rows.append(rows_A[turns.answers_M])
        rows_V = np.concatenate(rows)
        visits_L = np.bincount(rows_V).astype(np.float64)
        sums_L = np.bincount(rows_V, np.concatenate([each.advantages_M for each in visits]))
        return moves._replace(visits_L=visits_L / len(visits), advantages_L=sums_L / visits_L)

    def examples(
        self, batch: FlatBatch, unlisted: Ints, advantages_U: Floats, weights_U: Floats
    ) -> Examples:
        """Return every move as an example, weighted by its visits and its probability.

        With weights whose mean over tokens is 1 it is the gradient of the expectation over moves.
        Answers that are not listed, such as illegal ones, remain as sampled.
        """
        samples = [*self.samples, *(batch.token_samples[index] for index in unlisted)]
        shares_L = np.exp([float(each.double().sum()) for each in self.logprobs])
        weights_S = np.concatenate([self.visits_L * shares_L, weights_U])
        lengths_S = np.array([sample.num_scored for sample in samples])
        prompts: dict[tuple[int, ...], int] = {}
        sequences = [prompts.setdefault(tuple(s.prompt_ids), len(prompts)) for s in samples]
        return Examples(
            samples=samples,
            roles_S=[*self.roles, *(batch.roles_S[index] for index in unlisted)],
            sequences_S=np.array(sequences),
            advantages_S=np.concatenate([self.advantages_L, advantages_U]),
            weights_S=weights_S * lengths_S.sum() / (weights_S * lengths_S).sum(),
            chosen=np.flatnonzero(weights_S > 0),
            behavior=None,
        )
