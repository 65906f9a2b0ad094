"""The policy gradient over all legal moves: each move of each prompt as a weighted example."""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from unstable.learners.batch import Examples, FlatBatch, Floats, Ints, Mask, Role
from unstable.learners.experience import Experience
from unstable.types import TokenSample

_NEVER = 1e-30  # visits of a state without any, so that no mean divides by 0
_LEAST_VISITS = 1e-3
"""Minimum visits per update of a prompt."""
RAREST = 1e-20
"""Minimum probability of a move, so that raised advantages are finite."""


def probabilities(logprobs: Iterable[Tensor]) -> Floats:
    """Return the probability of each answer from its tokens' log-probabilities, or its ratio."""
    return np.exp([float(each.double().sum()) for each in logprobs])


class MovesVisited(NamedTuple):
    """The legal moves [L] of each prompt; equal prompts have the gradient of all their turns."""

    samples: list[TokenSample]
    roles: list[Role]
    logprobs: list[Tensor]  # by token
    counts_L: Floats  # visits of the prompt, or their roots with the same sum, times probability
    advantages_L: Floats  # mean over the states behind the prompt

    @classmethod
    def of(
        cls,
        experience: Experience,
        examples_P: Mask,
        visits_P: Floats,
        values_PK: Floats,
        shares_M: Floats,
    ) -> Self:
        """Average the advantages Q - V of a prompt's moves over the states behind the prompt.

        States count by their visits, and a prompt by the root of its visits: between the gradient
        of the mean reward, by visits, and a step of mirror descent, equal at all prompts. A move
        counts by its probability.
        """
        owners_M, answers_M = experience.owners_M, experience.answers_M
        seats_M = experience.seats_P[owners_M]
        means_PK = experience.means(shares_M, values_PK)
        advantages_M = values_PK[experience.pairs_M, seats_M] - means_PK[owners_M, seats_M]
        weights_M = np.maximum(visits_P, _NEVER)[owners_M]
        chosen_L = np.unique(answers_M[examples_P[owners_M]])
        visits_L: Floats = np.bincount(answers_M, weights_M)[chosen_L].astype(np.float64)
        advantages_L = np.bincount(answers_M, weights_M * advantages_M)[chosen_L] / visits_L
        logprobs = [experience.logprobs[index] for index in chosen_L]
        visits_L = np.maximum(visits_L, _LEAST_VISITS)
        roots_L = np.sqrt(visits_L)
        visits_L = roots_L * visits_L.sum() / roots_L.sum()
        seats_A = np.zeros(len(experience.logprobs), int)
        seats_A[answers_M] = seats_M
        found = [experience.answers.found[index] for index in chosen_L]
        return cls(
            samples=[each.tokens for each in found],
            roles=[
                (each.env, seat)
                for each, seat in zip(found, seats_A[chosen_L].tolist(), strict=True)
            ],
            logprobs=logprobs,
            counts_L=visits_L * np.maximum(probabilities(logprobs), RAREST),
            advantages_L=advantages_L,
        )

    def examples(
        self,
        batch: FlatBatch,
        unlisted: Ints,
        advantages_U: Floats,
        weights_U: Floats,
        counts_U: Floats,
    ) -> Examples:
        """Return every move as an example that counts by its visits and its probability.

        It is the gradient of the expectation over moves. Answers that are not listed, such as
        illegal ones, remain as sampled, and count by importance weights. Without `behavior`
        log-probabilities, an importance weight cancels the ratio of later steps, so that a move
        keeps its weight: a move that has become unlikely does not lose its gradient.
        """
        samples = [*self.samples, *(batch.token_samples[index] for index in unlisted)]
        counts_S = np.concatenate([self.counts_L, counts_U])
        weights_S = np.concatenate([np.ones(len(self.samples)), weights_U])
        prompts: dict[tuple[int, ...], int] = {}
        sequences = [prompts.setdefault(tuple(s.prompt_ids), len(prompts)) for s in samples]
        return Examples(
            samples=samples,
            roles_S=[*self.roles, *(batch.roles_S[index] for index in unlisted)],
            sequences_S=np.array(sequences),
            advantages_S=np.concatenate([self.advantages_L, advantages_U]),
            weights_S=weights_S,
            counts_S=counts_S,
            enumerated_S=np.arange(len(samples)) < len(self.samples),
            chosen=np.flatnonzero(weights_S * counts_S > _NEVER),
            behavior=None,
        )
