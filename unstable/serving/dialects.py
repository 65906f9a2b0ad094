"""Dialects: other chat APIs, translated to and from OpenAI's chat completions.

Seats answer chat completions alone, so that all APIs give the same tokens.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from unstable.config.plugins import registered
from unstable.serving.requests import ApiError


class Dialect(Protocol):
    """Translator of an API's requests and answers, found by an entry point `unstable.dialects`."""

    path: str
    """Path of the requests after the seat's own, such as `/v1/messages`."""

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

    def error(self, error: ApiError) -> dict[str, Any]:
        """Return an error as the body of a response."""


@cache
def dialects() -> Sequence[Dialect]:
    """Return one dialect of each kind that installed packages declare."""
    return [entry.load()() for entry in registered("dialects").values()]
