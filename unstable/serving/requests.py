"""Requests of OpenAI's API as validated values, with defaults and one-line errors."""

import hmac
import json
import logging
import re
from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from unstable.config import shown
from unstable.engines.base import EngineDiedError

log = logging.getLogger(__name__)

MOST_BYTES = 4 * 2**20
"""Maximum size of a request body in bytes."""
_MOST_MOVES = 1024
_MOST_CHOICES, _MOST_LIKELIEST, _MOST_STOPS = 64, 20, 4
_COLDEST = 0.01  # engines are inexact at lower temperatures, except at 0
_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An error response of the API: ApiError(404, "no such model", param="model")"""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self._retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response in addition to the body's."""
        named = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self._retry_after_s is not None:
            named["Retry-After"] = str(self._retry_after_s)
        return named

    def renamed(self, names: Mapping[str, str]) -> "ApiError":
        """Return the error with other names of fields, at the beginning of its message too."""
        first, dot, rest = (self.param or "").partition(".")
        if first not in names:
            return self
        param = f"{names[first]}{dot}{rest}"
        message = f"{names[first]}{self.message.removeprefix(first)}"
        return ApiError(self.status, message, param=param, code=self.code)

    def body(self) -> dict[str, Any]:
        """Return the response's body, in the API's error format."""
        kind = _KINDS.get(self.status) or (
            "invalid_request_error" if self.status < 500 else "server_error"
        )
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def as_error(error: BaseException) -> ApiError:
    """Convert an exception to an `ApiError`; logs unexpected exceptions."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineDiedError):
        return ApiError(503, "the engine has died")
    log.error("a request failed", exc_info=error)
    return ApiError(500, "internal server error; see the server's log")


def is_token(given: str | None, wanted: str) -> bool:
    """Return whether a token is the `wanted` one, compared in constant time."""
    return given is not None and hmac.compare_digest(given.encode(), wanted.encode())


class _Value(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, strict=True)


class _Function(_Value):
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w-]+$")]
    arguments: str = "{}"


class _ToolCall(_Value):
    id: str | None = None
    function: _Function


def _texts(content: Any) -> Any:
    """Convert a message's content to one text; joins text parts with newlines."""
    if not isinstance(content, list):
        return content
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise ValueError(f"unsupported part type {shown(kind)}; use text")
    return "\n".join(part["text"] for part in content)


class _ChatMessage(_Value):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_texts)] = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None

    def value(self) -> dict[str, Any]:
        """Return the message in a chat template's format."""
        content = self.content or ""
        role = "system" if self.role == "developer" else self.role
        if not self.tool_calls:
            return {"role": role, "content": content}
        calls = [
            {"type": "function", "function": {"name": called.name, "arguments": arguments}}
            for called, arguments in (
                (each.function, _arguments(each.function.arguments)) for each in self.tool_calls
            )
        ]
        return {"role": role, "content": content, "tool_calls": calls}


def _by_call(messages: list[_ChatMessage]) -> list[_ChatMessage]:
    """Sort outputs of tools by their calls, if all name one; they may come as they completed."""
    found, places = list[_ChatMessage](), dict[str | None, int]()
    for is_output, run in groupby(messages, lambda message: message.role == "tool"):
        group = list(run)
        if is_output and all(message.tool_call_id in places for message in group):
            group.sort(key=lambda message: places[message.tool_call_id])
        places = {call.id: place for place, call in enumerate(group[-1].tool_calls or ())}
        found += group
    return found


class _Tool(_Value):
    type: Literal["function"]
    function: dict[str, Any]

    @field_validator("function")
    @classmethod
    def _named(cls, function: dict[str, Any]) -> dict[str, Any]:
        _Function.model_validate({"name": function.get("name")})
        return function


class _StreamOptions(_Value):
    include_usage: bool = False


def _warm(temperature: float | None) -> float | None:
    if temperature and temperature < _COLDEST:
        raise ValueError(f"must be 0 (greedy) or >= {_COLDEST}")
    return temperature


def _stops(stop: Any) -> Any:
    """Return the stop texts as a list."""
    stops = [stop] if isinstance(stop, str) else stop
    if isinstance(stops, list) and len(stops) > _MOST_STOPS:
        raise ValueError(f"{len(stops)} texts, but the maximum is {_MOST_STOPS}")
    return stops


class _Schema(_Value):
    schema_: dict[str, Any] = Field(alias="schema")


class _Form(_Value):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema: missing; give {name, schema}")
        return self


class Request(_Value):
    """Fields that both kinds of requests share: how to sample and send answers."""

    model: str
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2), AfterValidator(_warm)] = None
    n: Annotated[int, Field(ge=1, le=_MOST_CHOICES)] = 1
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**64)] = None
    stop: Annotated[list[str], BeforeValidator(_stops)] = []
    stream: bool = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool = False

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of an answer; None: limited by the context alone."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer and are not part of it."""
        return [each for each in self.stop if each]

    @property
    def answers(self) -> int:
        """Number of requested answers, over all prompts."""
        return self.n

    @property
    def wants_tokens(self) -> bool:
        """True if the request includes token ids or logprobs."""
        return self.return_token_ids or self.likeliest is not None

    @property
    def is_formed(self) -> bool:
        """True if the answer must be JSON of a schema, or a tool call."""
        return False

    @property
    def characters(self) -> int:
        """Approximate number of the request's characters."""
        raise NotImplementedError

    @property
    def likeliest(self) -> int | None:
        """Number of likeliest tokens to return at each token; None: no logprobs at all."""
        raise NotImplementedError


class ChatRequest(Request):
    """A request of `/v1/chat/completions`."""

    messages: Annotated[list[_ChatMessage], Field(min_length=1)]
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_LIKELIEST)] = 0
    tools: list[_Tool] = []
    tool_choice: Literal["auto", "none", "required"] | _Tool = "auto"
    parallel_tool_calls: bool = True
    response_format: _Form | None = None
    legal_moves: Annotated[list[str], Field(max_length=_MOST_MOVES)] | None = None

    @field_validator("messages")
    @classmethod
    def _no_orphans(cls, messages: list[_ChatMessage]) -> list[_ChatMessage]:
        for before, message in pairwise([None, *messages]):
            is_said = before is not None and before.role in ("assistant", "tool")
            if message is not None and message.role == "tool" and not is_said:
                raise ValueError("a tool message must follow an assistant or tool message")
        return _by_call(messages)

    @property
    def chat(self) -> list[dict[str, Any]]:
        """Messages in a chat template's format."""
        return [message.value() for message in self.messages]

    @property
    def offered(self) -> list[dict[str, Any]]:
        """Tools that the answer may call."""
        if self.tool_choice == "none":
            return []
        return [{"type": each.type, "function": each.function} for each in self.tools]

    @property
    def characters(self) -> int:
        tools = sum(len(str(each.function)) for each in self.tools)
        calls = [call.function for each in self.messages for call in each.tool_calls or ()]
        written = sum(len(call.arguments) for call in calls)
        return tools + written + sum(16 + len(each.content or "") for each in self.messages)

    @property
    def form(self) -> Mapping[str, Any] | None:
        """Schema of the JSON answer; None if the answer may be any text."""
        given = self.response_format
        if given is None or given.type == "text":
            return None
        return {"type": "object"} if given.json_schema is None else given.json_schema.schema_

    @property
    def forced(self) -> list[Mapping[str, Any]]:
        """Functions of which the answer must call one; empty if it need not."""
        if isinstance(self.tool_choice, str):
            return [] if self.tool_choice != "required" else [each.function for each in self.tools]
        name = self.tool_choice.function["name"]
        return [each.function for each in self.tools if each.function["name"] == name]

    @property
    def is_formed(self) -> bool:
        return self.form is not None or bool(self.forced)

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.tool_choice not in ("auto", "none") and not self.forced:
            raise ValueError("tool_choice: function not found in tools")
        if self.is_formed and (self.logprobs or self.return_token_ids):
            raise ValueError("logprobs: unsupported with structured output; remove it")
        if self.form is not None and self.forced:
            raise ValueError("response_format: conflicts with tool_choice; remove one of them")
        return self

    @property
    def likeliest(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


def _prompts(prompt: Any) -> Any:
    """Return a list of prompts, each a text or token ids, from one prompt or a list."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt and all(isinstance(each, int) for each in prompt):
        return [prompt]
    if not isinstance(prompt, list) or not 0 < len(prompt) <= _MOST_CHOICES:
        raise ValueError(f"must be a text, token ids, or a list of 1 to {_MOST_CHOICES} of them")
    return prompt


class TextRequest(Request):
    """A request of `/v1/completions`: each prompt is a text or token ids."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts)]
    max_tokens: Annotated[int | None, Field(ge=0)] = 16
    logprobs: Annotated[int | None, Field(ge=0, le=_MOST_LIKELIEST)] = None
    echo: bool = False

    @model_validator(mode="after")
    def _echoes(self) -> Self:
        if self.echo and self.stream:
            raise ValueError("echo: conflicts with stream; remove one of them")
        if not (self.most_tokens or self.echo):
            raise ValueError("max_tokens: must be >= 1, or set echo")
        return self

    @property
    def answers(self) -> int:
        return self.n * len(self.prompt)

    @property
    def characters(self) -> int:
        return sum(map(len, self.prompt))

    @property
    def likeliest(self) -> int | None:
        return self.logprobs


_BENDS: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "best_of": (1,),
    "min_tokens": (0,),
}
"""Parameters that would change the distribution that logprobs refer to, with neutral values."""
_GREEDY = {"top_p", "top_k", "min_p"}
"""Parameters without effect under greedy decoding."""
_UNREAD = {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
"""Parameters that do not affect answers."""
_TYPE = re.compile(r"(str|int|float|bool|list\[.*|literal\[.*|function-.*|_[A-Z]\w*)")
"""Parts that pydantic adds to an error's location: the type that it tried."""


def json_object(body: bytes) -> dict[str, Any]:
    """Parse a body, without fields that are null; raises `ApiError`."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "the request body is not JSON") from None
    if not isinstance(given, Mapping):
        raise ApiError(400, "the request body is not a JSON object")
    return {name: value for name, value in given.items() if value is not None}


def read_request(kind: type[ChatRequest] | type[TextRequest], given: Mapping[str, Any]) -> Any:
    """Validate a request of that kind; raises `ApiError`."""
    for name, value in given.items():
        if name in kind.model_fields or name in _UNREAD:
            continue
        says_nothing = value in _BENDS.get(name, (False, "", [], {}, {"type": "text"}))
        if not (says_nothing or (name in _GREEDY and given.get("temperature") == 0)):
            why = "it would change the logprobs' distribution; " if name in _BENDS else ""
            raise ApiError(
                400,
                f"{name[:64]} = {shown(value)}: unsupported; {why}remove it",
                param=name,
                code="unsupported_parameter",
            )
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"] if not _TYPE.fullmatch(str(part)))
        said = first["msg"].removeprefix("Value error, ")
        if not name and said.partition(":")[0] in kind.model_fields:  # from a model validator
            name, _, said = said.partition(": ")
        raise ApiError(400, f"{name}: {said}" if name else said, param=name or None) from None


def _arguments(text: str) -> dict[str, Any] | str:
    """Parse a call's arguments for a template; returns text that is no JSON object unchanged."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict) else text
