"""Requests of OpenAI's API as values: what is not said has its default, what is wrong one line."""

import hmac
import json
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from unstable.config import shown
from unstable.engines.base import EngineDiedError

log = logging.getLogger(__name__)

MOST_BYTES = 4 * 2**20
"""Of a request's body."""
_MOST_MOVES = 1024
_MOST_CHOICES, _MOST_LIKELIEST, _MOST_STOPS = 64, 20, 4
_COLDEST = 0.01  # below it, besides 0, no engine answers exactly
_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that says what is wrong: ApiError(404, "no such model", param="model")"""

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
        """What its answer says besides the body."""
        named = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self._retry_after_s is not None:
            named["Retry-After"] = str(self._retry_after_s)
        return named

    def body(self) -> dict[str, Any]:
        """What is sent, in the API's own form."""
        kind = _KINDS.get(self.status) or (
            "invalid_request_error" if self.status < 500 else "server_error"
        )
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def as_error(error: BaseException) -> ApiError:
    """What is said of an error; one that nobody expected goes to the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineDiedError):
        return ApiError(503, "the engine has died")
    log.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed; its log says why")


def is_token(given: str | None, wanted: str) -> bool:
    """Whether a token is the one that is wanted, in a time that says nothing about it."""
    return given is not None and hmac.compare_digest(given.encode(), wanted.encode())


class _Value(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Function(_Value):
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w-]+$")]
    arguments: str = "{}"


class _Call(_Value):
    function: _Function


class _Part(_Value):
    type: Literal["text", "input_text"]
    text: str


class _Message(_Value):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None

    def value(self) -> dict[str, Any]:
        """It as a chat template takes it."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
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


class _Tool(_Value):
    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["function"]
    function: dict[str, Any]


class _StreamOptions(_Value):
    include_usage: bool = False


def _warm(temperature: float | None) -> float | None:
    if temperature and temperature < _COLDEST:
        raise ValueError(f"give 0 (greedy) or at least {_COLDEST}")
    return temperature


class Request(_Value):
    """What both kinds of requests say of how answers are sampled and sent."""

    model: str
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2), AfterValidator(_warm)] = None
    n: Annotated[int, Field(ge=1, le=_MOST_CHOICES)] = 1
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**64)] = None
    stop: str | Annotated[list[str], Field(max_length=_MOST_STOPS)] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool = False

    @property
    def most_tokens(self) -> int | None:
        """Of the answer; None: as many as there is room for."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer, and are no part of it."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [each for each in given if each]

    @property
    def wants_tokens(self) -> bool:
        """Whether tokens are asked for besides the text that they make."""
        return self.return_token_ids or self.likeliest is not None

    @property
    def likeliest(self) -> int | None:
        """At each token, how many others are asked for; None: not even its own logprob."""
        raise NotImplementedError


class ChatRequest(Request):
    """A request of `/v1/chat/completions`."""

    messages: Annotated[list[_Message], Field(min_length=1)]
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_LIKELIEST)] = 0
    tools: list[_Tool] = []
    tool_choice: Literal["auto", "none"] = "auto"
    legal_moves: Annotated[list[str], Field(max_length=_MOST_MOVES)] | None = None

    @property
    def chat(self) -> list[dict[str, Any]]:
        """The messages as a chat template takes them."""
        return [message.value() for message in self.messages]

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that may be called."""
        if self.tool_choice == "none":
            return []
        return [{"type": each.type, "function": each.function} for each in self.tools]

    @property
    def likeliest(self) -> int | None:
        """As `Request` has it."""
        return self.top_logprobs if self.logprobs else None


class TextRequest(Request):
    """A request of `/v1/completions`, of one prompt: text, or token ids as they are."""

    prompt: str | list[int]
    logprobs: Annotated[int | None, Field(ge=0, le=_MOST_LIKELIEST)] = None
    echo: Literal[False] = False

    @property
    def likeliest(self) -> int | None:
        """As `Request` has it."""
        return self.logprobs


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1, None),
    "top_k": (-1, 0, None),
    "min_p": (0, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "repetition_penalty": (1, None),
    "logit_bias": ({}, None),
    "best_of": (1, None),
    "suffix": (None, ""),
    "functions": (None, []),
    "response_format": ({"type": "text"}, None),
}
"""What is not served, with the values that say nothing."""


def read_request(kind: type[ChatRequest] | type[TextRequest], body: bytes) -> Any:
    """The request of that kind which is in a body; raises `ApiError`."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is no JSON") from None
    if not isinstance(given, Mapping):
        raise ApiError(400, "the body is no JSON object")
    for name, neutral in _NEUTRAL.items():
        if name in given and given[name] not in neutral:
            why = "what is sampled is recorded with exact probabilities"
            raise ApiError(
                400,
                f"{name} = {shown(given[name])}: is not served, since {why}; leave it out",
                param=name,
                code="unsupported_parameter",
            )
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(
            str(part) for part in first["loc"] if not str(part).startswith(("list[", "str"))
        )
        raise ApiError(400, f"{name}: {first['msg']}", param=name or None) from None


def _arguments(text: str) -> dict[str, Any] | str:
    """A call's arguments as a template takes them; as text where they are no JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict) else text
