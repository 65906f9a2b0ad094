"""Preference learning: quantities of its losses, and the base classes of its algorithms.

A pair is two answers to the same prompt of which one earned more (`pairs`). An algorithm writes the
loss of each pair (`Pairwise.losses`); the loss of an optimizer step is its mean over pairs.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import Aggregation, PairsConfig
from unstable.learners.advantages import center_by, group_advantages
from unstable.learners.algorithm import Algorithm, Loss, Tokens
from unstable.learners.batch import Examples, FlatBatch, Floats
from unstable.learners.losses import sequence_sums
from unstable.learners.pairs import group_pairs, position_pairs, positions


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTokens:
    """Figures of the pair [N] that each of a micro-batch's tokens belongs to."""

    margins_N: Tensor  # log-ratio of the chosen answer minus the rejected one's
    longer_N: Tensor  # length of the chosen answer minus the rejected one's
    chosen_N: Tensor  # log-probability of the chosen answer
    rejected_N: Tensor
    nll_N: Tensor  # negative log-likelihood per token of the chosen answer


def pair_tokens(tokens: Tokens, *, reference: bool, token_means: bool) -> PairTokens:
    """Compute the margins of the tokens' pairs; chosen answers have positive `advantages_N`.

    Margins are with or without the reference, of sums over an answer or of means per token.
    """
    logprobs_N, pairs_N = tokens.logprobs_N, tokens.sequences_N
    chosen_N = (tokens.advantages_N > 0).to(logprobs_N.dtype)
    signs_N = 2 * chosen_N - 1
    lengths_N = sequence_sums(torch.ones_like(logprobs_N), tokens.turns_N)
    log_ratios_N = reference_ratios(tokens) if reference else logprobs_N
    scales_N = signs_N / lengths_N if token_means else signs_N
    return PairTokens(
        margins_N=sequence_sums(scales_N * log_ratios_N, pairs_N),
        longer_N=sequence_sums(signs_N, pairs_N),
        chosen_N=sequence_sums(chosen_N * logprobs_N, pairs_N),
        rejected_N=sequence_sums((1 - chosen_N) * logprobs_N, pairs_N),
        nll_N=-sequence_sums(chosen_N * logprobs_N / lengths_N, pairs_N),
    )


def reference_ratios(tokens: Tokens) -> Tensor:
    """Compute each token's [N] log-ratio of policy to reference, in nats, with gradient."""
    assert tokens.reference_logprobs_N is not None
    return tokens.logprobs_N - tokens.reference_logprobs_N


class Preferences(Algorithm):
    """Learns which answers are better; a batch without preferences makes no step and is counted."""

    updates_skipped = 0

    def metrics(self) -> dict[str, float | None]:
        return {"learn/preferences_skipped": float(self.updates_skipped)}

    def state_dict(self) -> dict[str, Any]:
        return {"updates_skipped": self.updates_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates_skipped = state["updates_skipped"]


class Pairwise(Preferences):
    """Learns from pairs, each of which an optimizer step and a micro-batch hold whole."""

    uses_old_logprobs = False
    token_means = False  # True: margins of means per token, not of sums
    config: PairsConfig

    def __init__(self, config: PairsConfig) -> None:
        super().__init__(config)
        self.pairs = self.compared = self.pairless = 0  # counts of the last batch

    def losses(self, pairs: PairTokens) -> Tensor:
        """The loss [N] of the pair of each token, without the SFT term."""
        raise NotImplementedError

    @property
    def aggregation(self) -> Aggregation:
        """The mean over pairs, which are the sequences here."""
        return "sequence"

    @property
    def whole_in_step(self) -> bool:
        return True

    @property
    def whole_in_pass(self) -> bool:
        return True

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        """Subtract from each trajectory's reward the mean of its comparison set."""
        if self.config.pairs == "group":
            return group_advantages(batch, rewards_S, "none")
        return center_by(batch.mean_T(rewards_S)[batch.trajectories_S], positions(batch))

    def examples(self, batch: FlatBatch, advantages_S: Floats) -> Examples:
        """The pairs, as two answers each: the chosen one, whose advantage is 1, and the other."""
        find = group_pairs if self.config.pairs == "group" else position_pairs
        # Within a comparison set advantages differ as rewards do.
        found = find(batch, advantages_S, self.config.margin)
        pairs = list(chain.from_iterable(found))
        self.pairs = len(pairs)
        self.compared, self.pairless = len(found), found.count([])
        self.updates_skipped += not pairs
        indices = np.array(pairs, np.int64).reshape(-1)
        if not pairs:
            return Examples.turns(batch, advantages_S, self.weights(batch), indices)
        behavior = batch.behavior_logprobs
        return Examples(
            samples=[batch.token_samples[index] for index in indices],
            roles_S=[batch.roles_S[index] for index in indices],
            sequences_S=np.repeat(np.arange(len(pairs)), 2),
            advantages_S=np.tile([1.0, -1.0], len(pairs)),
            weights_S=self.weights(batch)[indices],
            counts_S=np.ones(len(indices)),
            enumerated_S=np.zeros(len(indices), bool),
            chosen=np.arange(len(indices)),
            behavior=[behavior[index] for index in indices],
        )

    def loss(self, tokens: Tokens) -> Loss:
        pairs = pair_tokens(
            tokens, reference=self.config.reads_reference, token_means=self.token_means
        )
        losses_N = self.losses(pairs) + self.config.sft_weight * pairs.nll_N
        return Loss(
            value=(losses_N / tokens.normalizers_N).sum(),
            ratios_N=torch.ones_like(tokens.logprobs_N),
            turn_means={
                "learn/pair_accuracy": (pairs.margins_N > 0).float(),
                "learn/pair_margin": self.config.beta * pairs.margins_N,
                "learn/chosen_logprob": pairs.chosen_N,
                "learn/rejected_logprob": pairs.rejected_N,
            },
        )

    def metrics(self) -> dict[str, float | None]:
        return {
            "learn/pairs": float(self.pairs),
            "learn/pairless_share": self.pairless / self.compared if self.compared else None,
            **super().metrics(),
        }
