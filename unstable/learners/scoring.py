"""Scoring: what the policy's model says of samples, without a gradient."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unstable.learners.columns import Columns, Layout
from unstable.learners.micro_batches import MicroBatches
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.policy import Policy, Scores
from unstable.types import TokenSample


class Scorer:
    """Puts samples through the model in micro-batches, on all ranks together."""

    def __init__(self, policy: Policy, micro_batches: MicroBatches) -> None:
        self._policy = policy
        self._micro_batches = micro_batches

    def logprobs(self, samples: Sequence[TokenSample]) -> list[Tensor]:
        """Of each sample's tokens, in nats, on the CPU."""
        sizes = [len(sample.token_ids) for sample in samples]
        (logprobs,) = self._read(samples, sizes, lambda scores: [scores.logprobs_N])
        return logprobs

    def logprobs_and_states(
        self, samples: Sequence[TokenSample]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The same, and the last hidden states [T, D] that the tokens are predicted from."""
        sizes = [len(sample.token_ids) for sample in samples]
        both = self._read(samples, sizes, lambda scores: [scores.logprobs_N, scores.hidden_ND])
        logprobs, states = both
        return logprobs, states

    def values(
        self, samples: Sequence[TokenSample], value: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """`value` of the last hidden states [S, D] where prompts end: a number a sample."""
        ones = [1] * len(samples)
        (values,) = self._read(samples, ones, lambda scores: [value(scores.states_SD)])
        return values

    @torch.no_grad()
    def _read(
        self,
        samples: Sequence[TokenSample],
        sizes: Sequence[int],
        read: Callable[[Scores], list[Tensor]],
    ) -> list[list[Tensor]]:
        """What `read` finds, figure by figure, sample by sample."""
        columns = Columns(Layout(sizes, self._policy.device))
        for micro_batch in self._micro_batches(samples):
            pack = pack_samples([samples[place] for place in micro_batch.places])
            figures = {str(i): found for i, found in enumerate(read(self._policy(pack)))}
            columns.put(micro_batch.places, figures, micro_batch.counts)
        self._micro_batches.ranks.sum_(list(columns.values()))
        return [columns.by_sample(name) for name in columns]
