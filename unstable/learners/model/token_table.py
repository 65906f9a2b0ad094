"""Samples as arrays, so that passes that choose among them never read them one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

from unstable.types import TokenSample

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """S samples; `take` selects in the arrays with the suffix `_S` and shares the others.

    A sample's inputs are its tokens without the last one, which predicts no scored token.
    """

    ids: Ints  # inputs, sample after sample
    common: Ints  # by place in the order of the inputs: leading ids in common with the place before
    offsets: Ints  # of scored tokens: the input that predicts each, counted from the sample's first
    targets: Ints  # of scored tokens: their ids
    starts_S: Ints  # indices in `ids`
    inputs_S: Ints  # number of inputs
    lengths_S: Ints  # number of tokens
    prompts_S: Ints  # number of tokens of the prompt
    places_S: Ints  # in the order of the inputs
    firsts_S: Ints  # indices of the first scored tokens
    scored_S: Ints  # number of scored tokens
    temperatures_S: NDArray[np.float32]

    @classmethod
    def of(cls, samples: Sequence[TokenSample]) -> Self:
        """Read the samples, all of which have a prompt."""
        assert all(sample.prompt_ids for sample in samples)
        answers = [sample.token_ids for sample in samples]
        inputs = [s.prompt_ids + answer[:-1] for s, answer in zip(samples, answers, strict=True)]
        scored = [_scored(sample) for sample in samples]
        inputs_S, prompts_S, answers_S, scored_S = (
            np.fromiter(map(len, each), np.int64)
            for each in (inputs, [sample.prompt_ids for sample in samples], answers, scored)
        )
        ids = np.fromiter(chain.from_iterable(inputs), np.int64)
        order = np.array(sorted(range(len(inputs)), key=inputs.__getitem__), np.int64)
        starts_S = np.cumsum(inputs_S) - inputs_S
        offsets = np.fromiter(chain.from_iterable(scored), np.int64)
        return cls(
            ids=ids,
            common=_common_lengths(ids, starts_S[order], inputs_S[order]),
            offsets=offsets + np.repeat(prompts_S - 1, scored_S),
            targets=np.fromiter(chain.from_iterable(s.scored_ids for s in samples), np.int64),
            starts_S=starts_S,
            inputs_S=inputs_S,
            lengths_S=prompts_S + answers_S,
            prompts_S=prompts_S,
            places_S=np.argsort(order),  # inverse permutation
            firsts_S=np.cumsum(scored_S) - scored_S,
            scored_S=scored_S,
            temperatures_S=np.array([sample.temperature for sample in samples], np.float32),
        )

    def __len__(self) -> int:
        return len(self.starts_S)

    def take(self, indices: Sequence[int] | Ints) -> Self:
        """Choose samples, in the order of `indices`."""
        chosen = np.asarray(indices, np.int64)
        names = [name for name in self.__slots__ if name.endswith("_S")]
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})

    def shared(self, indices: Ints) -> Ints:
        """Leading inputs that each of these samples has in common with the one before; first 0.

        Indices must be distinct.
        """
        places = self.places_S[indices]
        bounds = np.sort(np.stack([places[:-1], places[1:]]), axis=0) + 1
        # In sorted order, two samples share what all neighbours between them share.
        least = np.minimum.reduceat(np.append(self.common, 0), bounds.T.ravel())[::2]
        return np.append(0, least)[: len(indices)]


def _scored(sample: TokenSample) -> Sequence[int]:
    """Return the places in the answer of the tokens that are scored."""
    if len(sample.segments) == 1 and sample.segments[0].scored:
        return range(len(sample.segments[0].token_ids))
    sizes = [len(segment.token_ids) for segment in sample.segments]
    starts = accumulate(sizes, initial=0)
    runs = zip(sample.segments, starts, sizes, strict=False)
    return [*chain.from_iterable(range(at, at + n) for each, at, n in runs if each.scored)]


def _common_lengths(ids: Ints, starts: Ints, lengths: Ints) -> Ints:
    """Leading ids that each sequence shares with the one before it; 0 for the first."""
    shorter = np.minimum(lengths[:-1], lengths[1:])
    differs = ids[spans(starts[:-1], shorter)] != ids[spans(starts[1:], shorter)]
    indices = np.append(np.flatnonzero(differs), len(differs))
    begins = np.cumsum(shorter) - shorter
    return np.append(0, np.minimum(indices[np.searchsorted(indices, begins)] - begins, shorter))


def spans(starts: Ints, counts: Ints) -> Ints:
    """For each start as many ascending integers as it has counts, one after another.

    >>> spans(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    offsets = np.cumsum(counts) - counts
    return np.repeat(starts - offsets, counts) + np.arange(counts.sum())
