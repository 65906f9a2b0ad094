"""Replies in the format of OpenAI's API: whole or streamed, with exact log-probabilities."""

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol, Self

from unstable.engines.base import Told
from unstable.prompts import TokenStrings
from unstable.serving.requests import ApiError, ChatRequest, Request, TextRequest
from unstable.types import Completion, TopLogprobs


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """Some of an answer's tokens. ReplyPart([9], [-0.5])"""

    ids: list[int] = field(default_factory=list)
    logprobs: Sequence[float | None] = ()  # None: a prompt's first token
    likeliest: TopLogprobs | None = None  # for each token, if recorded

    @classmethod
    def of(cls, completion: Completion | None) -> Self:
        """Return all tokens of an answer; an empty part for None."""
        if completion is None:
            return cls()
        return cls(completion.token_ids, completion.logprobs, completion.top_logprobs)

    def after(self, before: Self | None) -> Self:
        """Return these tokens preceded by others with known logprobs; unchanged for None."""
        if before is None:
            return self
        likeliest = [*(before.likeliest or []), *(self.likeliest or [[] for _ in self.ids])]
        return type(self)(before.ids + self.ids, [*before.logprobs, *self.logprobs], likeliest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer. Choice(text="[4]", finish_reason="stop")"""

    text: str
    finish_reason: str
    completion: Completion | None = None  # None: no local model answered
    before: "ReplyPart | None" = None  # prompt tokens, if echoed
    calls: list[dict[str, Any]] = field(default_factory=list)  # tool calls: name and arguments
    stop: str | None = None  # stop text that ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answers to a request."""

    model: str
    prompts: list[list[int]]
    choices: list[Choice]


class ServedSeat(Protocol):
    """An answerer of the requests to one address."""

    strings: TokenStrings
    """Decoder of the model's tokens."""

    def models(self) -> Sequence[str]:
        """Return the model names that requests may use."""

    async def answer(
        self, request: ChatRequest | TextRequest, told: Sequence[Told] | None
    ) -> Reply:
        """Return the answer; raises `ApiError`. Calls `told`, one per choice, as tokens arrive."""

    async def count(self, request: ChatRequest) -> int:
        """Return the number of the prompt's tokens; raises `ApiError`."""


def check_model(seat: ServedSeat, name: str) -> None:
    """Raise `ApiError` if a seat has no model of that name."""
    if name not in (known := seat.models()):
        text = f"unknown model {name[:200]!r}; use one of {', '.join(known)}"
        raise ApiError(404, text, param="model", code="model_not_found")


class Writer:
    """A writer of the answers to one request."""

    def __init__(self, request: Request, strings: TokenStrings) -> None:
        """Create the writer; `strings` decodes single tokens."""
        self._request = request
        self._strings = strings
        self._is_chat = isinstance(request, ChatRequest)
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        self._id = f"{prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, reply: Reply) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""
        kind = "chat.completion" if self._is_chat else "text_completion"
        choices = [self._choice(index, each) for index, each in enumerate(reply.choices)]
        body = {**self._head(kind, reply.model), "choices": choices, "usage": usage(reply)}
        if self._request.return_token_ids and len(reply.prompts) == 1:
            (body["prompt_token_ids"],) = reply.prompts
        return body

    def _head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": model}

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        found: dict[str, Any] = {"index": index, **_end(choice)}
        if self._is_chat:
            said = {"content": choice.text, "refusal": None, **_calls(choice)}
            found["message"] = {"role": "assistant", **said}
        else:
            found["text"] = choice.text
        return found | self._tokens(ReplyPart.of(choice.completion).after(choice.before))

    def _tokens(self, part: ReplyPart) -> dict[str, Any]:
        """Return the logprobs and ids to send in addition to the text."""
        found: dict[str, Any] = {"logprobs": self._logprobs(part) if part.ids else None}
        if self._request.return_token_ids and part.ids:
            found["token_ids"] = part.ids
        return found

    def _logprobs(self, part: ReplyPart) -> dict[str, Any] | None:
        wanted = self._request.likeliest
        if wanted is None:
            return None
        texts = self._strings.strings(part.ids)
        likeliest = part.likeliest or [[] for _ in texts]
        rows = zip(texts, part.logprobs, likeliest, strict=True)
        if self._is_chat:
            content = [
                {
                    **_token(text, logprob),
                    "top_logprobs": [
                        _token(self._strings.text([token]), value)
                        for token, value in others[:wanted]
                    ],
                }
                for text, logprob, others in rows
            ]
            return {"content": content}
        return {
            "tokens": texts,
            "token_logprobs": list(part.logprobs),
            "top_logprobs": [
                {self._strings.text([token]): value for token, value in others[:wanted]} or None
                for others in likeliest
            ],
            "text_offset": list(accumulate(map(len, texts[:-1]), initial=0)),
        }

    def begun(self, model: str, index: int) -> dict[str, Any]:
        """Return the first piece of an answer of a chat."""
        return self._piece(model, index, {"role": "assistant", "content": ""})

    def added(self, model: str, index: int, text: str, part: ReplyPart) -> dict[str, Any]:
        """Return a piece with new text, of these tokens."""
        delta = {"content": text} if self._is_chat else text
        piece = self._piece(model, index, delta)
        piece["choices"][0] |= self._tokens(part)
        return piece

    def ended(self, model: str, index: int, choice: Choice) -> dict[str, Any]:
        """Return the last piece of an answer, with its tool calls."""
        delta: Any = _calls(choice, place=True) if self._is_chat else ""
        piece = self._piece(model, index, delta)
        piece["choices"][0] |= _end(choice)
        return piece

    def counted(self, reply: Reply) -> dict[str, Any]:
        """Return the final piece with the usage, sent if the request includes it."""
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return {**self._head(kind, reply.model), "choices": [], "usage": usage(reply)}

    def _piece(self, model: str, index: int, delta: Any) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        name = "delta" if self._is_chat else "text"
        choice = {"index": index, name: delta, "logprobs": None, "finish_reason": None}
        options = self._request.stream_options
        counted = {"usage": None} if options is not None and options.include_usage else {}
        return {**self._head(kind, model), "choices": [choice], **counted}


def usage(reply: Reply) -> dict[str, int]:
    """Return the number of tokens of the prompts and of all answers."""
    sampled = sum(len(each.completion.token_ids) for each in reply.choices if each.completion)
    prompt = sum(map(len, reply.prompts))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _end(choice: Choice) -> dict[str, Any]:
    """Return why an answer ended, and the stop text that ended it."""
    return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _calls(choice: Choice, *, place: bool = False) -> dict[str, Any]:
    """Return an answer's tool calls; in pieces (`place`) each has its index."""
    if not choice.calls:
        return {}
    calls = [
        {
            **({"index": index} if place else {}),
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for index, call in enumerate(choice.calls)
    ]
    return {"tool_calls": calls}
