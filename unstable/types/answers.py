"""What an engine answers, and what of it is trained on: token ids with their log-probabilities."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
TopLogprobs = list[list[tuple[int, float]]]
"""At each token, the ids that were the likeliest there and their log-probabilities, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An engine's answer: what was sampled, and the log-probabilities of exactly that distribution.

    Completion(token_ids=[58, 2], logprobs=[-0.1, -0.05], finish_reason="stop", adapter="main@3")
    """

    token_ids: list[int]  # the stop token included
    logprobs: list[float]  # natural logarithm, after temperature, one per token id
    finish_reason: FinishReason
    adapter: str | None  # None: the base model
    alternatives: TopLogprobs | None = None  # of the same distribution; None: not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """What a model is scored on: the tokens of the answer count, those of the prompt do not.

    TokenSample(prompt_ids=[1, 2, 3], token_ids=[58, 2])
    """

    prompt_ids: list[int]
    token_ids: list[int]  # none: only the prompt is read, as by a critic
    temperature: float = 1.0  # that the logits are divided by

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt_ids) + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens(TokenSample):
    """What a local model was given and what it sampled: its own ids, never re-encoded text."""

    logprobs: list[float]  # of exactly the distribution that was sampled from, one per token id
    finish_reason: FinishReason
    version: int | None  # of the policy that answered; None: no version of it
    prompt_cut: int = 0  # tokens of old events left out of the prompt so that it fits
    alternatives: TopLogprobs | None = None  # of that distribution; None: not recorded
