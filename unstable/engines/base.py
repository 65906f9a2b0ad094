"""What serves the model: token ids in, token ids with their log-probabilities out."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from unstable.config import RunConfig
from unstable.types import Adapter, Completion, TopLogprobs

MAX_ALLOWED = 1024
"""Token ids that an answer can be restricted to: more would end vLLM's newer model runner."""


class Told(Protocol):
    """A listener to an answer: called with its tokens since the last call, and their logprobs."""

    def __call__(
        self, ids: list[int], logprobs: list[float], likeliest: TopLogprobs | None = None, /
    ) -> None:
        """`likeliest` are as `Completion.top_logprobs`, where the engine gives them."""


class SamplingRequest(Struct, frozen=True, kw_only=True):
    """One answer that an engine is asked for: to which prompt, and how it is sampled.

    SamplingRequest(prompt_ids=[1, 2], adapter="main@3", temperature=1.0, max_tokens=8, seed=7)
    """

    prompt_ids: Sequence[int]
    adapter: str | None  # None: the base model
    temperature: float  # 0: the likeliest tokens, with their logprobs at temperature 1
    max_tokens: int
    seed: int  # decides the answer's chance, and nothing else's
    allowed_token_ids: Sequence[int] | None = None  # every token is one of these; None: any
    told: Told | None = None  # called as tokens are sampled, before the answer has them all


class EngineDiedError(RuntimeError):
    """The engine will never answer again; who owns it has to begin anew."""


class Engine(Protocol):
    """Answers many requests at once, each under weights of its own. One event loop uses it."""

    async def load(self, weights: Adapter) -> None:
        """Serve these weights; `ValueError` if their name is taken or they do not fit the base."""

    async def unload(self, name: str) -> None:
        """Forget the weights of that name and all that was computed under them.

        No request in flight may use them.
        """

    async def forget_prefixes(self) -> None:
        """Drop the prefix cache: answers then owe nothing to earlier ones. Only when idle."""

    async def generate(self, request: SamplingRequest) -> Completion:
        """Sample an answer to the request's prompt.

        With `allowed_token_ids` the logprobs are of the distribution over these alone: softmax over
        their logits, after temperature. Raises `ValueError` for an unknown adapter and for a
        request that cannot be served, `EngineDiedError` for a dead engine.
        """

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuations: Sequence[Sequence[int]],
        *,
        adapter: str | None,
    ) -> list[list[float]]:
        """Log-probability of each token of each continuation of the prompt, at temperature 1.

        Nothing is sampled. Raises as `generate` does.
        """

    def stats(self) -> dict[str, float]:
        """Counters since the start, and gauges: how many requests are running and waiting now."""

    async def sleep(self) -> None:
        """Give a GPU's memory back until `wake`, if there is one to give. Only when idle."""

    async def wake(self) -> None:
        """Serve again."""

    async def close(self) -> None:
        """Stop serving; requests in flight fail."""


def max_length(config: RunConfig) -> int:
    """Tokens of a run's longest prompt and answer together."""
    return config.sampling.max_prompt_tokens + config.sampling.max_tokens


def check_request(request: SamplingRequest, *, vocab_size: int, max_length: int) -> None:
    """Raise `ValueError` for what no engine can answer, before it can disturb other requests."""
    prompt_ids, allowed_token_ids = request.prompt_ids, request.allowed_token_ids
    temperature, max_tokens = request.temperature, request.max_tokens
    if not prompt_ids:
        raise ValueError("the prompt is empty; give at least one token id")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        raise ValueError(f"a token id of the prompt is outside the vocabulary of {vocab_size}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature = {temperature}; give 0 (greedy) or a positive number")
    if max_tokens < 1:
        raise ValueError(f"max_tokens = {max_tokens}; an answer has at least 1 token")
    if allowed_token_ids is not None:
        if not 0 < len(allowed_token_ids) <= MAX_ALLOWED:
            raise ValueError(
                f"{len(allowed_token_ids)} tokens are allowed; give 1 to {MAX_ALLOWED} token ids"
            )
        if min(allowed_token_ids) < 0 or max(allowed_token_ids) >= vocab_size:
            raise ValueError(f"an allowed token id is outside the vocabulary of {vocab_size}")
    if len(prompt_ids) + max_tokens > max_length:
        raise ValueError(
            f"{len(prompt_ids)} prompt tokens and max_tokens = {max_tokens} exceed the engine's "
            f"{max_length}; shorten sampling.max_prompt_tokens or sampling.max_tokens"
        )
