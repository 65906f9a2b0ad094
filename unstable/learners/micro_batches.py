"""Micro-batches: which samples go through the model together, and on which rank."""

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from unstable.config import Aggregation, LearnerConfig
from unstable.learners.batch import Floats, Ints
from unstable.learners.model.packing import held_tokens
from unstable.learners.model.token_table import TokenTable
from unstable.learners.ranks import ALONE, Ranks

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Made = TypeVar("Made")

_PADDING = 256
"""Padding tokens that any micro-batch may have; a large one may have a fifth of its tokens."""


class BeginAgainError(torch.OutOfMemoryError):
    """Out of memory on one rank of a sharded model, while the others wait in the same pass.

    All ranks must restart, with smaller micro-batches.
    """


class MicroBatch(NamedTuple):
    """Indices of the samples of a pass; `counts` is false for a repeat with weight 0."""

    indices: list[int]
    counts: bool


class _Atom(NamedTuple):
    """Samples that stay together, and the tokens that they count for."""

    indices: list[int]
    first: int  # tokens if the atom starts a micro-batch
    after: int  # tokens if it follows the previous atom
    longest: int  # tokens of its longest sample


@dataclass(slots=True)
class MicroBatches:
    """Splits a step among ranks and passes: `size` samples and `max_tokens` tokens at a time.

    The split does not change the gradient. A sample longer than `max_tokens` is a pass of its own.
    Tokens count in full; with `as_held` a shared prompt counts once, as in a pack; with `padded`
    all rows have the longest sample's length. With `together` every pass has collectives, so that
    no rank can repeat one alone. With `ahead` a thread prepares the next pass during a pass.
    """

    size: int | None = None  # None: only tokens are limited
    max_tokens: int | None = None
    ranks: Ranks = ALONE
    together: bool = False
    as_held: bool = False
    padded: bool = False
    ahead: bool = False
    halvings: int = 0  # since the last `take_halvings`
    fullest: int = 0  # most atoms in a micro-batch of the last split

    @classmethod
    def of(
        cls, config: LearnerConfig, ranks: Ranks, *, on_gpu: bool, padded: bool = False
    ) -> "MicroBatches":
        """Read the limits from the config; on a GPU they count tokens as a pack holds them."""
        return cls(
            *config.micro_batch_limits(on_gpu=on_gpu),
            ranks,
            together=config.parallel == "fsdp" and ranks.count > 1,
            as_held=on_gpu and not padded,
            padded=padded,
            ahead=on_gpu,  # on a CPU all threads compute
        )

    def halve(self, error: str) -> None:
        """Halve both limits permanently after a GPU ran out of memory; the caller repeats the pass.

        Raises `torch.OutOfMemoryError`, with a remedy, if nothing is left to halve, and
        `BeginAgainError` if other ranks wait in the same pass.
        """
        reason = error.partition("\n")[0]
        full = f"the learner's GPU ran out of memory with micro-batches of {self._limits}"
        if self.fullest == 1:
            raise torch.OutOfMemoryError(
                f"{full}; set learner.gradient_checkpointing to on, or lower "
                f"sampling.max_prompt_tokens ({reason})"
            )
        if self.together:
            raise BeginAgainError(
                f"{full}; lower learner.micro_batch_size or learner.micro_batch_tokens ({reason})"
            )
        self.size = self.size and max(1, self.size // 2)
        self.max_tokens = self.max_tokens and max(1, self.max_tokens // 2)
        self.halvings += 1
        log.warning(
            "the GPU ran out of memory; the pass is repeated, and micro-batches are limited to "
            "%s from now on (%s)",
            self._limits,
            reason,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def retried(self, attempt: Callable[[], Made]) -> Made:
        """Return `attempt()`; if a GPU runs out of memory, repeat it with smaller micro-batches."""
        while True:
            try:
                return attempt()
            except torch.OutOfMemoryError as error:
                reason = str(error)
            self.halve(reason)  # outside of the handler, which keeps the attempt's tensors alive

    @property
    def _limits(self) -> str:
        if self.fullest == 1:
            return "one sample"
        bounds = ((self.size, "samples"), (self.max_tokens, "tokens"))
        return " and ".join(f"{bound} {name}" for bound, name in bounds if bound is not None)

    def take_halvings(self) -> int:
        """Return how often limits were halved since the last call."""
        halvings, self.halvings = self.halvings, 0
        return halvings

    def __call__(self, table: TokenTable, atoms: Sequence[int] | None = None) -> list[MicroBatch]:
        """Return this rank's micro-batches of the samples; all ranks have equally many.

        Samples that share most of their prompts go together; padded samples, by similar lengths.
        An atom is never split, even if it exceeds the limits alone. A rank with fewer micro-batches
        repeats one with weight 0, since the collectives of a sharded model need all ranks.
        """
        ordered = self._ordered(table, atoms)
        lengths_S, shared_S = table.lengths_S, np.zeros_like(table.lengths_S)
        if not self.padded and (self.as_held or self.ranks.count > 1):
            in_a_row = np.fromiter(chain.from_iterable(ordered), np.int64)
            # Answers count in full, since each scores its own tokens.
            shared_S[in_a_row] = np.minimum(table.shared(in_a_row), table.prompts_S[in_a_row])
        owners = [0] * len(ordered)
        if self.ranks.count > 1:
            owners = self.ranks.owners(_sums(lengths_S - shared_S, ordered))
        self.fullest = 0
        added_S = held_tokens(lengths_S, shared_S) if self.as_held else lengths_S
        saved, lengths = (lengths_S - added_S).tolist(), lengths_S.tolist()
        measured = [
            _Atom(atom, saved[atom[0]] + tokens, tokens, max([lengths[i] for i in atom]))
            for atom, tokens in zip(ordered, _sums(added_S, ordered), strict=True)
        ]
        shares = [
            self._filled([m for m, owner in zip(measured, owners, strict=True) if owner == rank])
            for rank in range(self.ranks.count)
        ]
        own = [MicroBatch(indices, True) for indices in shares[self.ranks.index]]
        lacking = max(map(len, shares)) - len(own)
        sizes = _sums(lengths_S, ordered)
        shortest = ordered[sizes.index(min(sizes))]
        return own + [MicroBatch(shortest, False)] * lacking

    def _ordered(self, table: TokenTable, atoms: Sequence[int] | None) -> list[list[int]]:
        """Return the indices of each atom's samples, atoms in the order of their first inputs.

        Padded ones are sorted by the length of their longest sample.
        """
        keys = (table.lengths_S if self.padded else table.places_S).tolist()
        members = [[index] for index in range(len(table))] if atoms is None else _members(atoms)
        if self.padded:
            return sorted(members, key=lambda atom: max([keys[i] for i in atom]))
        return sorted(members, key=lambda atom: keys[atom[0]])

    def _filled(self, atoms: Sequence[_Atom]) -> list[list[int]]:
        """Fill micro-batches with the atoms, up to the limits."""
        most = math.inf if self.max_tokens is None else self.max_tokens
        size = math.inf if self.size is None else self.size
        batches: list[list[int]] = []
        held = number = longest = 0
        for atom in atoms:
            held += atom.after
            number += 1
            longest = max(longest, atom.longest)
            samples = len(batches[-1]) + len(atom.indices) if batches else 0
            tokens = longest * samples if self.padded else held
            wasteful = tokens - held > max(_PADDING, tokens // 5)
            if not batches or tokens > most or samples > size or wasteful:
                batches.append([])
                held, number, longest = atom.first, 1, atom.longest
            batches[-1] += atom.indices
            self.fullest = max(self.fullest, number)
        return batches


def _sums(numbers_S: Ints, ordered: Sequence[list[int]]) -> list[int]:
    """Sum the numbers of each atom's samples."""
    numbers = numbers_S.tolist()
    return [sum([numbers[index] for index in atom]) for atom in ordered]


def _members(atoms: Sequence[int]) -> list[list[int]]:
    """Indices of each atom's samples."""
    members: dict[int, list[int]] = {}
    for index, atom in enumerate(atoms):
        members.setdefault(atom, []).append(index)
    return list(members.values())


def token_normalizers(
    lengths_S: Floats, trajectories_S: Ints, aggregation: Aggregation, max_tokens: int
) -> Floats:
    """Compute the divisor of the token losses of each sample [S], so that their sum is the mean.

    token: the mean over all tokens. turn: the mean of the turns' means. sequence: the mean of the
    trajectories' means. constant: samples x `max_tokens`, which no length can change, as in
    Dr. GRPO, https://arxiv.org/abs/2503.20783.
    """
    count = len(lengths_S)
    if aggregation == "token":
        return np.full(count, lengths_S.sum())
    if aggregation == "turn":
        return count * lengths_S
    if aggregation == "constant":
        return np.full(count, float(count * max_tokens))
    keys, keys_S = np.unique(trajectories_S, return_inverse=True)
    totals_T: Floats = np.bincount(keys_S, weights=lengths_S).astype(np.float64)
    return len(keys) * totals_T[keys_S]


def made_ahead(
    items: Sequence[Item], make: Callable[[Item], Made], *, threaded: bool
) -> Generator[tuple[Item, Made]]:
    """Yield each item with `make(item)`; `threaded` makes the next one while this one is used.

    A caller that stops early drops what was made ahead; the thread ends with the iterator.
    """
    if not threaded:
        yield from ((item, make(item)) for item in items)
        return
    with ThreadPoolExecutor(1, "ahead") as thread:
        coming = deque(thread.submit(make, item) for item in items[:1])
        for place, item in enumerate(items, start=1):
            made = coming.popleft().result()
            coming += [thread.submit(make, following) for following in items[place : place + 1]]
            yield item, made
