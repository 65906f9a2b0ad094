"""Exploration: selection of informative answers for the branches of a forked position.

Samples several answers at the fork, which an ensemble of the policy's versions scores by the reward
that a policy trained on preferences implies: log pi(answer) - log base(answer), up to a scale
(Rafailov et al., https://arxiv.org/abs/2305.18290). Branches begin with answers whose scores are
uncertain. Thompson sampling: Dwaracherla et al., https://arxiv.org/abs/2402.00396.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from unstable.collectors.players.model import answer_of, sample_answer
from unstable.config import ExploreConfig, SamplingConfig
from unstable.engines.base import Engine, SamplingRequest
from unstable.prompts import PromptBuilder
from unstable.types import Answer, GameSpec, SampledTokens, Turn
from unstable.types.seeds import derive_seed

Scores = NDArray[np.float64]
"""Scores of A answers by K members of an ensemble [K, A]."""


class Explorer:
    """Sampler of answers at a forked turn, which selects the first answer of each branch."""

    def __init__(
        self,
        config: ExploreConfig,
        engine: Engine,
        prompts: Mapping[str, PromptBuilder],
        *,
        sampling: SamplingConfig,
        seed: int,
    ) -> None:
        self._config, self._engine, self._prompts = config, engine, prompts
        self._sampling, self._seed = sampling, seed

    async def answers(self, spec: GameSpec, turn: Turn) -> list[Answer]:
        """Return an answer for each branch of a game that is forked at `turn`.

        All are samples of the policy. They differ if enough different answers were sampled.
        """
        sampled = turn.answer.sampled
        assert sampled is not None, "turn of an untrained seat"
        found = await self._sample(spec, turn, sampled)
        scores = await self._scores(spec, found)
        chance = random.Random(derive_seed(self._seed, "explore", spec.game_id))
        rule = thompson if self._config.rule == "thompson" else most_variance
        chosen = rule(scores, min(spec.branches, len(found)), chance)
        return [found[chosen[branch % len(chosen)]] for branch in range(spec.branches)]

    async def _sample(self, spec: GameSpec, turn: Turn, asked: SampledTokens) -> list[Answer]:
        """Sample answers to the turn's prompt; returns the distinct ones in order of sampling."""
        prompts = self._prompts[spec.env]
        requests = (
            SamplingRequest(
                prompt_ids=asked.prompt_ids,
                adapter=spec.seats[turn.seat].player.name,
                temperature=asked.temperature,
                max_tokens=self._sampling.max_tokens,
                seed=derive_seed(self._seed, "candidate", spec.game_id, index),
            )
            for index in range(self._config.candidates)
        )
        budget = self._sampling.thoughts.budget
        found = await asyncio.gather(
            *(sample_answer(self._engine, prompts, each, budget) for each in requests)
        )
        answers: dict[tuple[int, ...], Answer] = {}
        for segments in found:
            sampled = replace(asked, segments=segments, thought=0)
            answers.setdefault(
                tuple(sampled.token_ids),
                answer_of(prompts, turn.answer.observation, sampled),
            )
        return list(answers.values())

    async def _scores(self, spec: GameSpec, answers: Sequence[Answer]) -> Scores:
        """Return the score of each answer by each member of the spec's ensemble [K, A]."""
        sampled = [each.sampled for each in answers if each.sampled is not None]
        token_ids = [tokens.token_ids for tokens in sampled]
        scored = await asyncio.gather(
            *(
                self._engine.score(sampled[0].prompt_ids, token_ids, adapter=adapter)
                for adapter in (None, *(version.name for version in spec.ensemble))
            )
        )
        totals = np.array([[sum(logprobs) for logprobs in member] for member in scored])
        return totals[1:] - totals[0]  # the first row is the base model's


def thompson(scores: Scores, count: int, chance: random.Random) -> list[int]:
    """Return the indices of `count` answers, each the best remaining one of a random member."""
    chosen: list[int] = []
    for _ in range(count):
        order = np.argsort(-scores[chance.randrange(len(scores))], kind="stable").tolist()
        chosen.append(next(index for index in order if index not in chosen))
    return chosen


def most_variance(scores: Scores, count: int, chance: random.Random) -> list[int]:
    """Return the indices of `count` answers on whose differences the members disagree most.

    The first two are the pair whose difference has the largest variance over members. The others
    follow by the variance of their difference to the first. Ties go to earlier samples.
    """
    number = scores.shape[1]
    if number == 1:
        return [0]
    pairs = list(combinations(range(number), 2))
    first, _ = max(pairs, key=lambda pair: float(np.var(scores[:, pair[0]] - scores[:, pair[1]])))
    differences = np.var(scores - scores[:, first : first + 1], axis=0)
    differences[first] = -1.0
    rest = np.argsort(-differences, kind="stable").tolist()
    return [first, *rest[: count - 1]]
