"""Scoring: log-probabilities and values of samples under the policy, without a gradient."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

import torch
from torch import Tensor

from unstable.learners.columns import Columns, Layout
from unstable.learners.micro_batches import MicroBatch, MicroBatches, made_ahead
from unstable.learners.model.policy import Inputs, Policy, Scores
from unstable.learners.model.token_table import Ints, TokenTable
from unstable.types import TokenSample

_Wanted = tuple[Sequence[int] | Ints, Callable[[Scores], Tensor]]
"""Number of values per sample, and how to read them from the scores."""


class Scorer:
    """Runs samples through the model in micro-batches, on all ranks together."""

    def __init__(self, policy: Policy, micro_batches: MicroBatches) -> None:
        self._policy = policy
        self._micro_batches = micro_batches

    @property
    def device(self) -> torch.device:
        """The policy's device."""
        return self._policy.device

    def logprobs(self, samples: Sequence[TokenSample]) -> list[Tensor]:
        """Return log-probabilities of each sample's tokens, in nats, on the CPU."""
        table = TokenTable.of(samples)
        return self._read(table, [(table.scored_S, attrgetter("logprobs_N"))])[0]

    def logprobs_and_states(
        self, samples: Sequence[TokenSample]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return log-probabilities and the last hidden states [T, D] that predict the tokens."""
        table = TokenTable.of(samples)
        figures = attrgetter("logprobs_N"), attrgetter("hidden_ND")
        logprobs, states = self._read(table, [(table.scored_S, each) for each in figures])
        return logprobs, states

    def values(self, samples: Sequence[TokenSample], value: Callable[[Scores], Tensor]) -> Tensor:
        """`value` of each sample [S], on the CPU."""
        (values,) = self._read(TokenTable.of(samples), [([1] * len(samples), value)])
        return torch.cat(values)

    @torch.no_grad()
    def _read(self, table: TokenTable, wanted: Sequence[_Wanted]) -> list[list[Tensor]]:
        """Return the wanted figures of each sample."""
        read = self._micro_batches.retried(partial(self._pass, table, wanted))
        self._micro_batches.ranks.sum_([columns["read"] for columns in read])
        return [columns.by_sample("read") for columns in read]

    def _pass(self, table: TokenTable, wanted: Sequence[_Wanted]) -> list[Columns]:
        """Compute this rank's share of the wanted figures."""
        read = [Columns(Layout(sizes, self._policy.device)) for sizes, _ in wanted]

        def make(micro_batch: MicroBatch) -> tuple[list[Tensor], Inputs]:
            indices = micro_batch.indices
            inputs = self._policy.inputs(table.take(indices))
            rows = [columns.layout.rows(indices) for columns in read]
            return rows, inputs.to(self._policy.device)

        micro_batches = self._micro_batches(table)
        threaded = self._micro_batches.ahead
        for (_, counts), (places, inputs) in made_ahead(micro_batches, make, threaded=threaded):
            scores = self._policy(inputs)
            for columns, rows, (_, figures) in zip(read, places, wanted, strict=True):
                columns.put(rows, {"read": figures(scores)}, counts)
        return read
