"""Batches of recorded games for updates: their order, and held-out games."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from unstable.config import LearnConfig
from unstable.datasets.examples import PairExample, pair_group
from unstable.datasets.recorded import GroupIndex
from unstable.types import GameResult, PackedBatch, PackedTrajectory
from unstable.types.seeds import derive_seed

PAIR = 2
"""Samples of a complete pair."""


def is_held_out(result: GameResult, share: float, seed: int) -> bool:
    """Return whether a game is held out, by its deal, so that a group's games are alike."""
    spec = result.spec
    return random.Random(derive_seed(seed, "held out", spec.env, spec.seed)).random() < share


def split(
    pairs: Sequence[PairExample], share: float, seed: int
) -> tuple[list[PairExample], list[PairExample]]:
    """Split pairs into trained and held-out ones."""
    sides: tuple[list[PairExample], list[PairExample]] = ([], [])
    for number, pair in enumerate(pairs):
        drawn = random.Random(derive_seed(seed, "held out pair", number)).random()
        sides[drawn < share].append(pair)
    return sides


@dataclass(frozen=True, kw_only=True)
class OfflineData:
    """Trained and held-out groups, as batches of at least `batch_size` samples.

    An epoch's last groups are left out if they have fewer samples, unless there are no others.
    """

    index: GroupIndex
    learn: LearnConfig
    batch_size: int
    seed: int
    pairs: Sequence[PairExample] = ()
    held_out_pairs: Sequence[PairExample] = ()

    @property
    def updates(self) -> int:
        """Number of batches in all epochs."""
        return self.ends[-1]

    @cached_property
    def ends(self) -> list[int]:
        """Version that each epoch ends with."""
        ends, version = [], 0
        for epoch in range(self.learn.epochs):
            version += len(self._cuts(self._order(epoch)))
            ends.append(version)
        return ends

    def batches(self, version: int) -> Iterator[PackedBatch]:
        """Yield the batches from the update of `version` on, epoch after epoch."""
        first = 0  # version at the start of the epoch
        for epoch in range(self.learn.epochs):
            order = self._order(epoch)
            cuts = self._cuts(order)
            done = min(max(version - first, 0), len(cuts))
            begin = cuts[done - 1] if done else 0
            groups = self._groups(order[begin : cuts[-1]].tolist())
            for number, end in enumerate(cuts[done:], start=first + done):
                yield PackedBatch(number, tuple(islice(groups, end - begin)), recorded=True)
                begin = end
            first += len(cuts)

    def held_out(self) -> Iterator[PackedBatch]:
        """Yield the held-out groups, always in the same batches."""
        first = len(self.index.sizes) + len(self.pairs)
        pairs = range(first, first + len(self.held_out_pairs))
        order = np.array([*self.index.held_out, *pairs], dtype=np.int64)
        cuts = self._cuts(order, whole=False)
        groups = self._groups(order.tolist())
        for begin, end in zip([0, *cuts], cuts, strict=False):
            yield PackedBatch(0, tuple(islice(groups, end - begin)), recorded=True)

    def measures(self, version: int, *, is_last: bool) -> bool:
        """Return whether the held-out loss of a version is due."""
        if not self.index.held_out and not self.held_out_pairs:
            return False
        every = self.learn.held_out_every
        return is_last or (version % every == 0 if every else version in (0, *self.ends))

    def epoch(self, version: int) -> float:
        """Return the number of passes through the games when a version is made."""
        epoch = next(number for number, end in enumerate(self.ends) if version <= end)
        before = self.ends[epoch - 1] if epoch else 0
        return epoch + (version - before) / (self.ends[epoch] - before)

    def _order(self, epoch: int) -> np.ndarray:
        shuffle = np.random.default_rng(derive_seed(self.seed, "offline order", epoch))
        first = len(self.index.sizes)
        pairs = range(first, first + len(self.pairs))
        return shuffle.permutation(np.array([*self.index.train, *pairs], dtype=np.int64))

    def _groups(self, order: Sequence[int]) -> Iterator[tuple[PackedTrajectory, ...]]:
        """Yield groups in this order: recorded ones by number, pairs by the numbers after them."""
        on_file = len(self.index.sizes)
        pairs = [*self.pairs, *self.held_out_pairs]
        read = self.index.groups((each for each in order if each < on_file), self.learn.window)
        for number in order:
            if number < on_file:
                yield next(read)
            else:
                # Negative numbers differ from those of all recorded games and groups.
                group = pair_group(pairs[number - on_file], on_file - number - 1)
                yield tuple(map(PackedTrajectory.of, group.trajectories))

    def _cuts(self, order: np.ndarray, *, whole: bool = True) -> list[int]:
        """Return the ends of batches; with `whole`, a smaller last one only if it is the first."""
        cuts, held, on_file = [], 0, len(self.index.sizes)
        pairs = [*self.pairs, *self.held_out_pairs]
        for place, index in enumerate(order.tolist(), start=1):
            is_pair = index >= on_file
            held += len(pairs[index - on_file].answers) if is_pair else self.index.sizes[index]
            if held >= self.batch_size:
                cuts.append(place)
                held = 0
        if held and not (whole and cuts):
            cuts.append(len(order))
        return cuts
