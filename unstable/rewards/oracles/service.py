"""A JSON service, called by POST with limited time and size, without redirects."""

import json
import os
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic_core import PydanticSerializationError, to_json

from unstable.config import ConfigError, hide_secrets, keep_secret, shown, spare_loopback
from unstable.config.remote import retry_after, silence
from unstable.rewards.oracles.base import OracleError
from unstable.rewards.oracles.calling import bounded_pause

if TYPE_CHECKING:
    from httpx import AsyncClient, Response

_LATER = {408, 409, 425, 429}
"""Statuses, in addition to 5xx, after which a retry may succeed."""


class Service:
    """A client of one address; errors name it, the term and the remedy, but never the key."""

    def __init__(
        self, place: str, url: str, key_env: str | None, most_bytes: int, url_field: str
    ) -> None:
        """Create the client; `place` begins its messages, such as "reward term http"."""
        self._place = place
        self._url = url
        self._key_env = key_env
        self._most_bytes = most_bytes
        self._url_field = url_field
        self._client: AsyncClient | None = None
        if key_env is not None:
            keep_secret(key_env)

    def check(self, field: str) -> None:
        """Raise `ConfigError` if the key is not set or the service does not respond."""
        if self._key_env is not None and not os.environ.get(self._key_env):
            raise ConfigError(
                f"{field}.api_key_env = {self._key_env!r}: not set; export the service's key as "
                "this variable (any text if it needs no key)"
            )
        if why := silence(self._url):
            raise ConfigError(
                f"{field}.{self._url_field} = {shown(self._url)}: {why}; start the service, or "
                "set the URL of a running one"
            )

    async def post(self, body: Any) -> Any:
        """Return the JSON reply; raises `OracleError` for anything else."""
        import httpx  # slow import: 0.3 s

        if self._client is None:
            spare_loopback()
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._key_env is not None:
                headers["Authorization"] = f"Bearer {os.environ.get(self._key_env, '')}"
            # The term's own timeout limits a call.
            self._client = httpx.AsyncClient(
                follow_redirects=False, timeout=None, headers=headers, limits=httpx.Limits()
            )
        try:
            content = to_json(body)
        except PydanticSerializationError:  # a lone surrogate, which `json` encodes
            content = json.dumps(body).encode()
        try:
            async with self._client.stream("POST", self._url, content=content) as response:
                return self._read(response, await self._content(response))
        except httpx.HTTPError as error:
            self._fail(f"{type(error).__name__} {error}".rstrip())

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _content(self, response: "Response") -> bytes:
        """Return the reply's bytes; rejects compression, which could exceed the size limit."""
        if response.headers.get("content-encoding", "identity") != "identity":
            self._fail("sent a compressed reply; disable its compression", again=False)
        parts, size = [], 0
        async for part in response.aiter_raw():
            parts.append(part)
            size += len(part)
            if size > self._most_bytes:
                self._fail(f"sent a reply of more than {self._most_bytes} bytes", again=False)
        return b"".join(parts)

    def _read(self, response: "Response", content: bytes) -> Any:
        status = response.status_code
        if 300 <= status < 400:
            to = shown(response.headers.get("location", ""))
            remedy = f"set {self._url_field} to the final URL"
            self._fail(f"redirects to {to}; redirects are not followed; {remedy}", again=False)
        if status != 200:
            text = shown(content[:200].decode(errors="replace"))
            again = status in _LATER or status >= 500
            pause_s = bounded_pause(retry_after(response.headers))
            self._fail(f"returned status {status}: {text}", again=again, pause_s=pause_s)
        try:
            return json.loads(content, parse_constant=_refuse)
        except (ValueError, RecursionError):
            self._fail(f"sent invalid JSON: {shown(content[:200].decode(errors='replace'))}")

    def complain(self, why: str) -> NoReturn:
        """Raise `OracleError` for a JSON reply with unexpected content."""
        self._fail(why)

    def _fail(self, why: str, *, again: bool = True, pause_s: float | None = None) -> NoReturn:
        text = hide_secrets(f"{self._place}: {self._url} {why}")  # a reply may contain the key
        raise OracleError(text, again=again, pause_s=pause_s)


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
