"""Experience of the action critic: what followed the moves of each state, with equal turns counted.

In small games it is a model of the game, so that values hardly depend on the critic's network.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from msgspec import convert, msgpack
from numpy.typing import NDArray
from torch import Tensor

from unstable.learners.batch import Floats, Ints, Mask
from unstable.learners.turns import MOST_SEATS, Numbered, StateMove, Transitions

_PRIOR = 2.0
"""Number of turns for which the model's value of a move counts."""
_DECAY = {"state": 0.99, "seat": 0.9}
"""Factor of all counts per update, by what the critic sees.

What follows a whole state hardly depends on the version that plays; in a seat's view, it does.
"""
_LEAST_COUNT = 1e-3
"""Count below which what followed a move is forgotten."""
_NONE = 1e-30
"""Expected visits of all points together below which they are not followed further."""
_MOST_TURNS = 1000
"""Maximum number of turns of a game that expected visits follow."""
_SWEEPS = 30
"""Maximum number of turns over which an outcome propagates per update beyond the model's values."""

_Point = tuple[tuple[int, ...], tuple[int, ...]]
"""A turn's legal moves: numbers of its pairs and of its answers."""
_Row = tuple[int, int, bytes, bytes]
"""A pair, the next point or -1, rewards [K] by seat, and whether they are known [K]."""
_Start = tuple[int, bool]
"""A point to which no counted move led, and whether a game began there."""
Key = TypeVar("Key")


class Outcomes(NamedTuple):
    """Columns of what followed the pairs: R kinds of turns."""

    pairs_R: Ints
    next_R: Ints
    rewards_KR: Floats
    counts_KR: Floats  # 0 for seats whose rewards are unknown

    def sums(self, values_KR: Floats, pairs: int) -> Floats:
        """Sum the values by pair: [K, pairs]."""
        return np.array([np.bincount(self.pairs_R, each, pairs) for each in values_KR])


class Experience:
    """Turns of all updates, compressed; the points seen least recently are forgotten.

    A *pair* is a state and a move, an *answer* a prompt and a move, a *point* a turn's state and
    prompt with all legal moves. Each is kept once and has a number. K is the number of seats.
    """

    owners_M: Ints  # each legal move's point, point by point
    pairs_M: Ints
    answers_M: Ints
    starts_P: Ints  # index in M of each point's first move
    seats_P: Ints  # the seat to move
    envs_P: NDArray[np.str_]

    def __init__(self, sees: str) -> None:
        self._decay, self._updates = _DECAY[sees], 0
        self.pairs, self.answers = Numbered(), Numbered()
        self._points: dict[_Point, int] = {}
        self._seats, self._seen = list[int](), list[int]()  # by point: its seat and last update
        self._counts: dict[_Row, float] = {}
        self._begun: dict[_Start, float] = {}
        self.logprobs: list[Tensor] = []  # by answer: those of its tokens when it was last scored

    def copy(self) -> "Experience":
        """Return a copy, which a later update does not change."""
        copy = object.__new__(Experience)
        vars(copy).update(
            (name, value.copy() if hasattr(value, "copy") else value)
            for name, value in vars(self).items()
        )
        return copy

    def number(self, turns: Transitions) -> Ints:
        """Return the point [S] of each turn; new ones get numbers."""
        pairs = [self.pairs.add(each) for each in turns.pairs]
        answers, points = [self.answers.add(each) for each in turns.answers], list[int]()
        bounds = np.searchsorted(turns.owners_M, np.arange(1 + len(turns.seats_S))).tolist()
        for start, end, seat in zip(bounds, bounds[1:], turns.seats_S.tolist(), strict=False):
            point = (tuple(pairs[start:end]), tuple(answers[start:end]))
            points.append(self._points.setdefault(point, len(self._points)))
            if points[-1] == len(self._seats):
                self._seats.append(seat)
                self._seen.append(self._updates)
            self._seen[points[-1]] = self._updates
        sizes_P = [len(pairs) for pairs, _ in self._points]
        self.starts_P, self.seats_P = np.cumsum([0, *sizes_P])[:-1], np.array(self._seats)
        self.owners_M = np.repeat(np.arange(len(sizes_P)), sizes_P)
        self.pairs_M, self.answers_M = (
            np.array([*chain.from_iterable(point[kind] for point in self._points)])
            for kind in (0, 1)
        )
        firsts = self.answers_M[self.starts_P].tolist()
        self.envs_P = np.array([self.answers.found[answer].env for answer in firsts])
        return np.array(points)

    def count(self, turns: Transitions, points_S: Ints) -> None:
        """Count what followed the listed moves of an update."""
        self._updates += 1
        self._counts = _decayed(self._counts, self._decay)
        self._begun = _decayed(self._begun, self._decay)
        later = turns.next_S[~turns.listed_S]  # they follow answers that are no moves
        for is_first, indices in ((True, turns.firsts), (False, later[later >= 0])):
            for point in points_S[indices].tolist():
                start = point, is_first
                self._begun[start] = self._begun.get(start, 0.0) + 1.0
        points, next_S = list(self._points), turns.next_S.tolist()
        for index, place in enumerate(turns.places_S.tolist()):
            if place >= 0:
                pair = points[points_S[index]][0][place]
                after = int(points_S[next_S[index]]) if next_S[index] >= 0 else -1
                reward = turns.rewards_SK[index].tobytes()
                row = (pair, after, reward, turns.known_SK[index].tobytes())
                self._counts[row] = self._counts.get(row, 0.0) + 1.0

    def draw(self, points_S: Ints, rng: np.random.Generator) -> tuple[Mask, Ints]:
        """Return which points [P] are examples, and the answers to score, those of examples too.

        Examples are an update's prompts and half as many others by chance, which generalization
        would change without a gradient; as many others are scored.
        """
        prompts_P = self.answers_M[self.starts_P]
        new = np.unique(prompts_P[points_S])
        others = rng.permutation(np.setdiff1d(prompts_P, new))[: len(new)]
        examples_P: Mask = np.isin(prompts_P, [*new, *others[: len(new) // 2]])
        scored_P = np.isin(prompts_P, [*new, *others])
        return examples_P, np.unique(self.answers_M[scored_P[self.owners_M]])

    def score(self, answers: Ints, logprobs: Sequence[Tensor]) -> tuple[Floats, Floats]:
        """Keep the answers' log-probabilities.

        Returns the probabilities [M] of legal moves, and their shares [M] of each point's sum.
        """
        self.logprobs += [logprobs[0]] * (len(self.answers.found) - len(self.logprobs))
        for answer, each in zip(answers.tolist(), logprobs, strict=True):
            self.logprobs[answer] = each
        ends_A = np.cumsum([*map(len, self.logprobs)])
        sums_A = np.add.reduceat(torch.cat(self.logprobs).double().numpy(), [0, *ends_A[:-1]])
        logprobs_M = sums_A[self.answers_M]
        most_P = np.maximum.reduceat(logprobs_M, self.starts_P)
        ratios_M = np.exp(logprobs_M - most_P[self.owners_M])
        shares_M: Floats = ratios_M / np.add.reduceat(ratios_M, self.starts_P)[self.owners_M]
        return np.exp(logprobs_M), shares_M

    def counted(self) -> Outcomes:
        """Return what followed the pairs, for as many seats as the games have."""
        rows = list(self._counts)
        rewards_RK = np.frombuffer(b"".join(row[2] for row in rows), np.float64)
        known_RK = np.frombuffer(b"".join(row[3] for row in rows), bool).reshape(-1, MOST_SEATS)
        seats = 1 + int(np.flatnonzero(known_RK.any(0)).max(initial=-1))
        counts_R = np.array([*self._counts.values()])
        return Outcomes(
            np.array([row[0] for row in rows], int),
            np.array([row[1] for row in rows], int),
            np.ascontiguousarray(rewards_RK.reshape(-1, MOST_SEATS).T[:seats]),
            counts_R * known_RK.T[:seats],
        )

    def means(self, shares_M: Floats, values_PK: Floats) -> Floats:
        """Means of the values of each point's moves [points, K], weighted by their shares."""
        means = [self._mean(shares_M, values_P) for values_P in np.ascontiguousarray(values_PK.T)]
        return np.stack(means, axis=1)

    def _mean(self, shares_M: Floats, values_P: Floats) -> Floats:
        weighted_M = shares_M * values_P[self.pairs_M]
        return np.bincount(self.owners_M, weighted_M, len(self._points)).astype(np.float64)

    def targets(
        self, counted: Outcomes, shares_M: Floats, values_PK: Floats
    ) -> tuple[Floats, Floats]:
        """Sums [P, K] of the targets of each pair's turns, and how many there are.

        A target is the reward until the next turn plus that turn's mean of `values_PK`.
        """
        values_KP = np.ascontiguousarray(values_PK.T[: len(counted.counts_KR)])
        counts_KP = counted.sums(counted.counts_KR, len(values_PK))
        return self._target_sums(counted, shares_M, values_KP).T, counts_KP.T

    def _target_sums(self, counted: Outcomes, shares_M: Floats, values_KP: Floats) -> Floats:
        means = np.array([self._mean(shares_M, values_P) for values_P in values_KP])
        later_KR = np.where(counted.next_R >= 0, means[:, counted.next_R], 0.0)
        targets_KR = counted.counts_KR * (counted.rewards_KR + later_KR)
        return counted.sums(targets_KR, values_KP.shape[1])

    def values(self, counted: Outcomes, shares_M: Floats, model_PK: Floats) -> Floats:
        """Values [P, K] of the pairs: those of the model, replaced by what followed as it recurs.

        They are the fixed point of the targets' means with `_PRIOR` turns of the model's value.
        """
        values_PK, seats = model_PK.copy(), len(counted.counts_KR)
        if not seats:
            return values_PK
        values_KP = model_KP = np.ascontiguousarray(model_PK.T[:seats])
        counts_KP = counted.sums(counted.counts_KR, len(model_PK))
        for _ in range(_SWEEPS):
            sums_KP = self._target_sums(counted, shares_M, values_KP)
            new_KP = (sums_KP + _PRIOR * model_KP) / (counts_KP + _PRIOR)
            moved = np.abs(new_KP - values_KP).max()
            values_KP = new_KP
            if moved < 1e-6:
                break
        values_PK[:, :seats] = values_KP.T
        return values_PK

    def visits(self, counted: Outcomes, likely_M: Floats, begin_G: Ints) -> Floats:
        """Expected visits of each point [points] in the G games of an update.

        `begin_G` is the point of each game's first turn; only its env matters. Games begin, and
        moves and answers that are not listed lead to the next turn, as often as the counts say;
        moves have the probabilities of their last scores. Points that play rarely visits are
        followed from the start of the game, too, so that the states behind a prompt have the
        weights that the policy gives them now.
        """
        visits: Floats = np.zeros(len(self._points))
        front: Floats = np.zeros(len(self._points))
        begun = defaultdict[str, float](float)
        for (point, is_first), count in self._begun.items():
            front[point] += count
            begun[str(self.envs_P[point])] += count * is_first
        envs_G = self.envs_P[begin_G]
        for env, games in begun.items():
            front[self.envs_P == env] *= np.count_nonzero(envs_G == env) / max(games, _NONE)
        counts_R, pairs = counted.counts_KR.max(0, initial=0.0), len(self.pairs.found)
        sums_P = np.bincount(counted.pairs_R, counts_R, pairs)  # 0 if forgotten
        shares_R = counts_R / np.maximum(sums_P, _NONE)[counted.pairs_R]
        goes_on = counted.next_R >= 0
        pairs_R, next_R, shares_R = (
            column[goes_on] for column in (counted.pairs_R, counted.next_R, shares_R)
        )
        for _ in range(_MOST_TURNS):
            if front.sum() < _NONE:
                break
            visits += front
            played = np.bincount(self.pairs_M, front[self.owners_M] * likely_M, pairs)
            front = np.bincount(next_R, played[pairs_R] * shares_R, len(visits)).astype(float)
        return visits

    def newest(self, limit: int, means_PK: Floats) -> "Experience":
        """Forget, if there are more than `limit` moves, the oldest points until half are left.

        Those of the last update remain. Games end at forgotten points, with the values `means_PK`.
        """
        if max(len(self.pairs.found), len(self.answers.found)) <= limit:
            return self
        sizes_U = np.bincount(self._seen, [len(pairs) for pairs, _ in self._points])
        small = np.flatnonzero(np.cumsum(sizes_U[::-1])[::-1] <= limit // 2)
        since = min(int(small.min(initial=len(sizes_U))), len(sizes_U) - 1)
        found = self.copy()
        found.pairs, found.answers, found._points = Numbered(), Numbered(), {}
        kept = [point for point, seen in enumerate(self._seen) if seen >= since]
        numbers = {point: number for number, point in enumerate(kept)}
        points, pairs_of = list(self._points), dict[int, int]()
        for point in kept:
            for old in points[point][0]:
                pairs_of[old] = found.pairs.add(self.pairs.found[old])
            pairs = tuple(pairs_of[old] for old in points[point][0])
            answers = tuple(found.answers.add(self.answers.found[it]) for it in points[point][1])
            found._points[pairs, answers] = numbers[point]
        found.logprobs = [self.logprobs[self.answers.add(each)] for each in found.answers.found]
        found._seats = [self._seats[point] for point in kept]
        found._seen = [self._seen[point] for point in kept]
        found._counts, ended = {}, defaultdict[tuple[int, bytes], Any](float)
        for (pair, after, reward, known), count in self._counts.items():
            if pair in pairs_of and (after < 0 or after in numbers):
                found._counts[pairs_of[pair], numbers.get(after, -1), reward, known] = count
            elif pair in pairs_of:
                values_K = np.frombuffer(reward) + means_PK[after]
                ended[pairs_of[pair], known] += count * np.append(1.0, values_K)
        for (pair, known), (count, *sums_K) in ended.items():
            row = pair, -1, (np.array(sums_K) / count).tobytes(), known
            found._counts[row] = found._counts.get(row, 0.0) + float(count)
        found._begun = {
            (numbers[point], is_first): count
            for (point, is_first), count in self._begun.items()
            if point in numbers
        }
        return found

    def packed(self) -> bytes:
        """The whole as bytes, which a checkpoint saves."""
        numbers = (self._updates, list(self._points), self._seats, self._seen)
        counts = [*self._counts.items()], [*self._begun.items()]
        logprobs = [each.tolist() for each in self.logprobs]
        found = (self.pairs.found, self.answers.found, numbers, counts, logprobs)
        return msgpack.encode(found)

    @classmethod
    def unpacked(cls, packed: bytes, sees: str) -> Self:
        """Return the experience that `packed` had."""
        pairs, answers, numbers, (counts, begun), logprobs = msgpack.decode(packed)
        found = cls(sees)
        for numbered, kept in ((found.pairs, pairs), (found.answers, answers)):
            for each in convert(kept, list[StateMove]):
                numbered.add(each)
        found._updates, points, found._seats, found._seen = numbers
        found._points = {each: n for n, each in enumerate(convert(points, list[_Point]))}
        found._counts = dict(convert(counts, list[tuple[_Row, float]]))
        found._begun = dict(convert(begun, list[tuple[_Start, float]]))
        found.logprobs = [torch.tensor(each) for each in logprobs]
        return found


def _decayed(counts: Mapping[Key, float], decay: float) -> dict[Key, float]:
    """Lower the counts, and forget those without influence."""
    return {key: count * decay for key, count in counts.items() if count * decay > _LEAST_COUNT}
