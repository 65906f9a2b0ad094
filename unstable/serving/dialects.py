"""Dialects: other chat APIs, translated to and from OpenAI's chat completions.

Seats answer chat completions alone, so that all APIs give the same tokens.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from unstable.config import shown
from unstable.config.plugins import registered
from unstable.serving.requests import ApiError, ChatRequest, read_request

_SHARED = {"model", "temperature", "seed", "stream", "legal_moves"}
"""Fields of chat completions that every dialect has."""


class Dialect(Protocol):
    """Translator of an API's requests and answers, found by an entry point `unstable.dialects`."""

    path: str
    """Path of the requests after the seat's own, such as `/v1/messages`."""
    count_path: str
    """Path of the requests that only count a prompt's tokens."""
    count_lacks: Mapping[str, Any]
    """Fields that such requests lack, with any valid value."""
    names: Mapping[str, str]
    """Names of its fields by those of chat completions, for errors."""

    def chat(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as one of chat completions; raises `ApiError`.

        A stream's request includes the usage.
        """

    def whole(self, given: Mapping[str, Any], reply: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request from the chat completion."""

    def events(
        self, given: Mapping[str, Any], pieces: AsyncIterator[Mapping[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of an answer, each with its name as `type`, from a stream's pieces.

        A piece with `error` is the last one.
        """

    def counted(self, tokens: int) -> dict[str, Any]:
        """Return the answer to a request that counts a prompt's tokens."""

    def error(self, error: ApiError) -> dict[str, Any]:
        """Return an error as the body of a response."""


@cache
def dialects() -> Sequence[Dialect]:
    """Return the dialects that installed packages declare."""
    return [entry.load()() for entry in registered("dialects").values()]


def translated(dialect: Dialect, given: Mapping[str, Any]) -> ChatRequest:
    """Return a dialect's request as a chat request; raises `ApiError` with the dialect's names."""
    chat = dialect.chat(given)
    try:
        found: ChatRequest = read_request(ChatRequest, chat)
    except ApiError as error:
        raise error.renamed(dialect.names) from None
    return found


def passed(given: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return the fields of a request that chat completions read alike, with its usage in streams.

    Raises `ApiError` for a field of chat completions that is not a dialect's `own`. Unknown fields
    are passed, for chat completions to refuse.
    """
    for name in given:
        if name in ChatRequest.model_fields and name not in {*own, *_SHARED}:
            raise ApiError(400, f"{name[:64]}: not a field of this API; remove it", param=name)
    kept = {name: value for name, value in given.items() if name not in own}
    return kept | ({"stream_options": {"include_usage": True}} if given.get("stream") else {})


def mapping(given: Any, place: str) -> Mapping[str, Any]:
    """Return a JSON object; raises `ApiError` for anything else."""
    if not isinstance(given, dict):
        raise ApiError(400, f"{place}: must be an object", param=place)
    return given


def listed(given: Any, place: str) -> list[Any]:
    """Return a JSON list; raises `ApiError` for anything else."""
    if not isinstance(given, list):
        raise ApiError(400, f"{place}: must be a list", param=place)
    return given


def text_parts(given: Any, place: str, kinds: Collection[str]) -> Any:
    """Return a content, or its parts, which are of these kinds, as texts of chat completions."""
    if not isinstance(given, list):
        return given
    parts = [mapping(part, place) for part in given]
    for part in parts:
        if part.get("type") not in kinds:
            kind = shown(part.get("type"))
            raise ApiError(400, f"{place}: unsupported type {kind}; use text", param=place)
    return [{"type": "text", "text": part.get("text")} for part in parts]
