"""What vLLM's two ways to serve versions have in common: by LoRAs, and by whole models."""

from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from unstable.types import Adapter


class Weights(NamedTuple):
    """The weights of a request, in vLLM's own words."""

    lora: Any = None  # a `LoRARequest`
    salt: str | None = None  # what the prefix cache files the prompt under


class Versions(Protocol):
    """The versions that an engine serves. One event loop uses it."""

    @property
    def requests(self) -> int:
        """Requests under a version that is not the base."""

    @property
    def hits(self) -> int:
        """Of these, requests whose weights were there."""

    async def start(self) -> None:
        """Make the base model right, before the first request."""

    async def load(self, weights: Adapter) -> None:
        """Serve a version; `ValueError` if its name is taken or it does not fit the base."""

    async def unload(self, name: str) -> None:
        """Forget a version. No request in flight may use it."""

    def asked(self, name: str | None) -> AbstractAsyncContextManager[Weights]:
        """A request under that version, None for the base, is in flight.

        Raises `ValueError` if it is not served.
        """
