"""Micro-batches: which samples go through the model together, and on which rank."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from unstable.config import Aggregation
from unstable.learners.batch import Floats, Ints
from unstable.learners.model.packing import common_length
from unstable.learners.ranks import ALONE, Ranks
from unstable.types import TokenSample

log = logging.getLogger(__name__)


class MicroBatch(NamedTuple):
    """Indices of samples that go through together; `counts` is false for a repeat of no weight."""

    indices: list[int]
    counts: bool


@dataclass(slots=True)
class MicroBatches:
    """How a step is cut up, for the ranks too: `size` samples and `max_tokens` tokens at a time.

    None of it changes the gradient. A sample that is longer than `max_tokens` goes alone. With
    `together` the ranks have collectives in every pass, so that none can repeat one by itself.
    """

    size: int
    max_tokens: int | None = None
    ranks: Ranks = ALONE
    together: bool = False
    halvings: int = 0  # since they were last taken

    def halve(self, error: str) -> None:
        """Halve both limits for good, when a GPU's memory did not suffice for a pass.

        The pass then begins anew. Not to be called while the error is handled: it holds the frames
        of the pass, and so its tensors. Raises `torch.OutOfMemoryError`, with a remedy, where
        nothing is left to halve.
        """
        reason = error.partition("\n")[0]
        if self.size == 1 or self.together:
            remedy = (
                "lower learner.micro_batch_size"
                if self.together
                else "set learner.gradient_checkpointing to on, or lower sampling.max_prompt_tokens"
            )
            raise torch.OutOfMemoryError(
                f"the learner's GPU is full with micro-batches of {self.size}; {remedy} ({reason})"
            )
        self.size //= 2
        self.max_tokens = self.max_tokens and max(1, self.max_tokens // 2)
        self.halvings += 1
        log.warning(
            "the GPU is full; micro-batches are of at most %d samples from now on, and the pass is "
            "made again (%s)",
            self.size,
            reason,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def take_halvings(self) -> int:
        """How often limits were halved since the last call."""
        halvings, self.halvings = self.halvings, 0
        return halvings

    def __call__(
        self, samples: Sequence[TokenSample], atoms: Sequence[int] | None = None
    ) -> list[MicroBatch]:
        """This rank's micro-batches of the samples, as many as any other rank has.

        Samples that share most of their prompts go together, and those of one atom stay together,
        at the price of a larger micro-batch where an atom alone is too large. A rank with fewer
        micro-batches repeats one without weight while it would have to wait anyway, since the
        collectives of a sharded model need all ranks.
        """
        ordered = _in_prompt_order(samples, range(len(samples)) if atoms is None else atoms)
        alone = self.ranks.count == 1
        owners = [0] * len(ordered) if alone else self.ranks.owners(_costs(samples, ordered))
        lengths = [sum(samples[index].length for index in atom) for atom in ordered]
        shares: list[list[list[int]]] = []
        for rank in range(self.ranks.count):
            mine = [index for index, owner in enumerate(owners) if owner == rank]
            atoms_lengths = [(ordered[index], lengths[index]) for index in mine]
            shares.append(self._filled(atoms_lengths))
        own = [MicroBatch(indices, True) for indices in shares[self.ranks.index]]
        lacking = max(map(len, shares)) - len(own)
        shortest = ordered[lengths.index(min(lengths))]
        return own + [MicroBatch(shortest, False)] * lacking

    def _filled(self, atoms: Sequence[tuple[list[int], int]]) -> list[list[int]]:
        """The atoms, given with their tokens, in micro-batches, each as full as it may be."""
        limit = math.inf if self.max_tokens is None else self.max_tokens
        batches: list[list[int]] = []
        held = 0
        for atom, tokens in atoms:
            held += tokens
            if not batches or held > limit or len(batches[-1]) + len(atom) > self.size:
                batches.append([])
                held = tokens
            batches[-1] += atom
        return batches


def _in_prompt_order(samples: Sequence[TokenSample], atoms: Sequence[int]) -> list[list[int]]:
    """Indices of each atom's samples, atoms in the order of their first prompts."""
    members: dict[int, list[int]] = {}
    for index, atom in enumerate(atoms):
        members.setdefault(atom, []).append(index)
    return sorted(members.values(), key=lambda atom: samples[atom[0]].prompt_ids)


def _costs(samples: Sequence[TokenSample], ordered: Sequence[list[int]]) -> list[int]:
    """Tokens of each atom that the prompt before it does not share."""
    costs = []
    before: list[int] = []
    for atom in ordered:
        costs.append(0)
        for sample in (samples[index] for index in atom):
            costs[-1] += sample.length - common_length(before, sample.prompt_ids, 0)
            before = sample.prompt_ids
    return costs


def token_normalizers(
    lengths_S: Floats, trajectories_S: Ints, aggregation: Aggregation, max_tokens: int
) -> Floats:
    """What the loss of each token of the samples [S] is divided by, so that the sum is the mean.

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
