"""Structured outputs: constrains any model's answer to JSON of a schema or a tool call."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from unstable.engines.base import MAX_ALLOWED, SamplingRequest
from unstable.serving.requests import ApiError, ChatRequest
from unstable.types import Completion
from unstable.types.seeds import derive_seed

_AHEAD = 16  # unconstrained tokens per call, kept up to the first that does not fit
_TRIES = 32  # rejected tokens before sampling is restricted to fitting tokens
_COMPACT = {"whitespace_flexible": False}  # otherwise a model may add whitespace endlessly


class Forms:
    """Grammars over one model's tokens, by llguidance (https://github.com/guidance-ai)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    async def answer(
        self,
        request: ChatRequest,
        asked: SamplingRequest,
        sample: Callable[[SamplingRequest], Awaitable[Completion]],
    ) -> Completion:
        """Sample an answer of the requested form to the prompt; raises `ApiError`.

        A token that does not fit is sampled again, which gives the model's distribution over
        fitting tokens. After 32 misses in a row (one at temperature 0, where all are equal), the
        token is sampled from the first 1,024 ids that fit.
        """
        matcher = await asyncio.to_thread(self._matcher, request)  # slow for large schemas
        ids, drawn, misses = list[int](), 0, 0
        most, tries = asked.max_tokens, 1 if asked.temperature == 0 else _TRIES
        while len(ids) < most and not matcher.is_stopped():
            mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            fits = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            few = len(fits) <= MAX_ALLOWED or misses >= tries
            if len(fits) == 1:
                new = [int(fits[0])]
            else:
                allowed, count = (fits[:MAX_ALLOWED].tolist(), 1) if few else (None, _AHEAD)
                part = replace(
                    asked,
                    prompt_ids=[*asked.prompt_ids, *ids],
                    max_tokens=min(count, most - len(ids)),
                    seed=derive_seed(asked.seed, "form", drawn),
                    allowed_token_ids=allowed,
                    told=None,
                )
                drawn += 1
                new = (await sample(part)).token_ids
            new = new[: matcher.validate_tokens(new)]
            misses = 0 if new else misses + 1
            matcher.consume_tokens(new)
            ids += new
        return Completion(
            token_ids=ids,
            logprobs=[0.0] * len(ids),
            finish_reason="stop" if matcher.is_stopped() else "length",
            adapter=None,
        )

    def _matcher(self, request: ChatRequest) -> Any:
        from llguidance import LLMatcher

        param = "response_format" if request.form is not None else "tools"
        try:
            if request.form is not None:
                grammar = LLMatcher.grammar_from_json_schema(
                    json.dumps({**request.form, "x-guidance": _COMPACT})
                )
            else:
                grammar = LLMatcher.grammar_from_lark(_calls(request.forced))
            matcher = LLMatcher(self._tokens, grammar)
        except ValueError as error:
            raise ApiError(400, f"{param}: {error}"[:500], param=param) from None
        if matcher.is_error():
            raise ApiError(400, f"{param}: {matcher.get_error()}"[:500], param=param)
        return matcher

    @cached_property
    def _tokens(self) -> Any:
        """The tokenizer for llguidance; raises `ValueError` if it does not support it."""
        from llguidance.hf import from_tokenizer

        return from_tokenizer(self._tokenizer)


def check_forms() -> None:
    """Raise `ApiError` if llguidance is not installed."""
    try:
        import llguidance  # noqa: F401
    except ImportError:
        text = "llguidance is not installed (structured output); run pip install -e '.[forms]'"
        raise ApiError(400, text, code="unsupported_parameter") from None


def _calls(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a grammar of one call of one of these tools, for `prompts.read_tool_calls`."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["name"]},
                "arguments": tool.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema = {"anyOf": calls, "x-guidance": _COMPACT}
    return f'start: "<tool_call>\\n" call "\\n</tool_call>"\ncall: %json {json.dumps(schema)}'
