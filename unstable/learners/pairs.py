"""Pairs out of a batch: two answers to the same prompt, ids and all, of which one earned more."""

from collections import defaultdict
from itertools import combinations
from typing import NamedTuple

import numpy as np

from unstable.learners.batch import FlatBatch, Floats, Role

Position = tuple[Role, tuple[int, ...]]
"""An env, a seat and the ids of a prompt."""
ROUNDING = 1e-6
"""Rewards that differ by less count as equal, because sums and means are rounded."""


class Pair(NamedTuple):
    """Indices of two samples of a batch with one prompt."""

    chosen: int
    rejected: int


def positions(batch: FlatBatch) -> list[Position]:
    """The position of each sample [S]."""
    prompts = (tuple(sample.prompt_ids) for sample in batch.token_samples)
    return list(zip(batch.roles_S, prompts, strict=True))


def group_pairs(batch: FlatBatch, rewards_S: Floats, margin: float) -> list[list[Pair]]:
    """Return the pairs of each group: any two trajectories of which one earned more.

    A pair is the first turn at which both had the same prompt and answered differently: the rest
    follows from it, or from chance. Every two trajectories count once, so that an answer
    that won more often is chosen more often. Rewards [S] are what trajectories earned.
    """
    ends = np.cumsum(batch.lengths_T).tolist()
    groups: dict[int, list[range]] = defaultdict(list)
    for group, end, length in zip(batch.groups_T, ends, batch.lengths_T, strict=True):
        groups[group].append(range(end - length, end))
    return [
        [
            pair
            for first, second in combinations(trajectories, 2)
            for turns in _parting(batch, first, second)
            for pair in _ordered(turns, rewards_S[turns[0]] - rewards_S[turns[1]], margin)
        ]
        for trajectories in groups.values()
        if len(trajectories) > 1
    ]


def _parting(batch: FlatBatch, first: range, second: range) -> list[tuple[int, int]]:
    """Return the turns at which two trajectories diverge; empty if they do not."""
    samples = batch.token_samples
    for turns in zip(first, second, strict=False):
        one, other = (samples[index] for index in turns)
        if one.prompt_ids == other.prompt_ids and one.token_ids != other.token_ids:
            return [turns]
    return []


def position_pairs(batch: FlatBatch, rewards_S: Floats, margin: float) -> list[list[Pair]]:
    """Return the pairs of each repeated position: any two answers of which one earned more.

    An answer earned the mean over the trajectories that gave it, so that games which ended by
    chance do not prefer it both ways. The first of its turns represents it. Rewards [S] belong to
    trajectories.
    """
    answers: dict[Position, dict[tuple[int, ...], list[int]]] = defaultdict(dict)
    for index, position in enumerate(positions(batch)):
        answer = tuple(batch.token_samples[index].token_ids)
        answers[position].setdefault(answer, []).append(index)
    return [
        [
            pair
            for first, second in combinations(turns.values(), 2)
            for pair in _ordered(
                (first[0], second[0]), rewards_S[first].mean() - rewards_S[second].mean(), margin
            )
        ]
        for turns in answers.values()
        if sum(map(len, turns.values())) > 1
    ]


def _ordered(turns: tuple[int, int], difference: float, margin: float) -> list[Pair]:
    """The pair, the better one first; none where they are alike or closer than the margin."""
    if abs(difference) < max(margin - ROUNDING, ROUNDING):
        return []
    first, second = turns
    return [Pair(first, second) if difference > 0 else Pair(second, first)]
