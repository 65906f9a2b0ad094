"""Scores of continuations, with one request per beginning that several of them share."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

from unstable.engines.base import SamplingRequest, check_request

After = Callable[[list[int], list[int]], Awaitable[Sequence[float]]]
"""A function (beginning, candidate ids) -> log-probability of each candidate as next token."""


async def score_all(continuations: Sequence[Sequence[int]], after: After) -> list[list[float]]:
    """Return the log-probability of each token of each continuation; scores shared parts once."""
    tree = next_tokens(continuations)
    found = await asyncio.gather(*(after([*begin], ids) for begin, ids in tree.items()))
    known = {
        begin: dict(zip(ids, logprobs, strict=True))
        for (begin, ids), logprobs in zip(tree.items(), found, strict=True)
    }
    return [
        [known[ids[:place]][token_id] for place, token_id in enumerate(ids)]
        for ids in map(tuple, continuations)
    ]


def next_tokens(continuations: Sequence[Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """Map each shared beginning of the continuations to the ids that may follow it, in order.

    >>> next_tokens([[5, 1], [5, 2], [7, 1]])
    {(): [5, 7], (5,): [1, 2], (7,): [1]}
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for continuation in map(tuple, continuations):
        for place, token_id in enumerate(continuation):
            listed = found.setdefault(continuation[:place], [])
            if token_id not in listed:
                listed.append(token_id)
    return found


def next_token(prompt_ids: Sequence[int], adapter: str | None) -> SamplingRequest:
    """Return a request for one token, whose distribution at temperature 1 gives the scores."""
    return SamplingRequest(
        prompt_ids=prompt_ids, adapter=adapter, temperature=1.0, max_tokens=1, seed=0
    )


def check_scoring(
    prompt_ids: Sequence[int],
    continuations: Sequence[Sequence[int]],
    *,
    vocab_size: int,
    max_length: int,
) -> None:
    """Raise `ValueError` for continuations that no engine can score."""
    if not all(continuations):
        raise ValueError("empty continuation; give at least one token id")
    all_ids = [*prompt_ids, *chain.from_iterable(continuations)] if prompt_ids else prompt_ids
    check_request(next_token(all_ids, None), vocab_size=vocab_size, max_length=sys.maxsize)
    longest = len(prompt_ids) + max(map(len, continuations), default=0)
    if longest > max_length:
        raise ValueError(
            f"prompt and continuation of {longest} tokens exceed the engine's limit of "
            f"{max_length}; reduce sampling.max_prompt_tokens"
        )
