"""The interface of an engine: token ids in, token ids with their log-probabilities out."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from unstable.config import RunConfig
from unstable.types import Adapter, Completion, TopLogprobs

MAX_ALLOWED = 1024
"""Maximum number of allowed token ids: more crash vLLM's newer model runner."""


class Told(Protocol):
    """A listener to a completion, called with the tokens since its last call and their logprobs."""

    def __call__(
        self, ids: list[int], logprobs: list[float], likeliest: TopLogprobs | None = None, /
    ) -> None:
        """Receive new tokens; `likeliest` is as in `Completion.top_logprobs`."""


class SamplingRequest(Struct, frozen=True, kw_only=True):
    """A request to an engine for one completion: the prompt and the sampling parameters.

    SamplingRequest(prompt_ids=[1, 2], adapter="main@3", temperature=1.0, max_tokens=8, seed=7)
    """

    prompt_ids: Sequence[int]
    adapter: str | None  # None: the base model
    temperature: float  # 0: greedy, with logprobs at temperature 1
    max_tokens: int
    seed: int  # for this completion only
    allowed_token_ids: Sequence[int] | None = None  # None: all tokens
    told: Told | None = None  # receives the tokens while the engine samples


class EngineDiedError(RuntimeError):
    """An engine's permanent failure; its owner has to start a new engine."""


class Engine(Protocol):
    """A server of concurrent requests, each under its own weights. One event loop uses it."""

    async def load(self, weights: Adapter) -> None:
        """Serve these weights; `ValueError` if their name is taken or they do not fit the base."""

    async def unload(self, name: str) -> None:
        """Remove the weights of that name and everything cached under them.

        No request in flight may use them.
        """

    async def forget_prefixes(self) -> None:
        """Drop the prefix cache, so that answers do not depend on earlier ones; only when idle."""

    async def generate(self, request: SamplingRequest) -> Completion:
        """Sample a completion of the request's prompt.

        With `allowed_token_ids` the logprobs refer to the distribution over these ids alone: the
        softmax of their logits, after temperature. Raises `ValueError` for an unknown adapter or a
        request that cannot be served, `EngineDiedError` if the engine is dead.
        """

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuations: Sequence[Sequence[int]],
        *,
        adapter: str | None,
    ) -> list[list[float]]:
        """Return the log-probability of each token of each continuation, at temperature 1.

        Samples nothing. Raises as `generate` does.
        """

    def stats(self) -> dict[str, float]:
        """Return counters since the start, and gauges of running and waiting requests."""

    async def sleep(self) -> None:
        """Release GPU memory until `wake`, if the engine uses a GPU; only when idle."""

    async def wake(self) -> None:
        """Resume serving after `sleep`."""

    async def close(self) -> None:
        """Stop serving; requests in flight fail."""


def max_length(config: RunConfig) -> int:
    """Return the number of tokens of a run's longest prompt and completion together."""
    return config.sampling.max_prompt_tokens + config.sampling.max_tokens


def check_request(request: SamplingRequest, *, vocab_size: int, max_length: int) -> None:
    """Raise `ValueError` for a request that no engine can serve."""
    prompt_ids, allowed_token_ids = request.prompt_ids, request.allowed_token_ids
    temperature, max_tokens = request.temperature, request.max_tokens
    if not prompt_ids:
        raise ValueError("empty prompt; give at least one token id")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        raise ValueError(f"prompt_ids: id outside the vocabulary; give ids below {vocab_size}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature = {temperature}: must be 0 (greedy) or a positive number")
    if max_tokens < 1:
        raise ValueError(f"max_tokens = {max_tokens}: must be >= 1")
    if allowed_token_ids is not None:
        if not 0 < len(allowed_token_ids) <= MAX_ALLOWED:
            raise ValueError(
                f"{len(allowed_token_ids)} allowed_token_ids; give 1 to {MAX_ALLOWED} token ids"
            )
        if min(allowed_token_ids) < 0 or max(allowed_token_ids) >= vocab_size:
            raise ValueError(f"allowed_token_ids: id outside the vocabulary of {vocab_size}")
    if len(prompt_ids) + max_tokens > max_length:
        raise ValueError(
            f"{len(prompt_ids)} prompt tokens plus max_tokens = {max_tokens} exceed the engine's "
            f"limit of {max_length}; reduce sampling.max_prompt_tokens or sampling.max_tokens"
        )
