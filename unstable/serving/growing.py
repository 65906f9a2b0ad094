"""The text of an answer that grows token by token, up to the first stop text."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from unstable.engines.base import Told
from unstable.prompts.text import UNKNOWN
from unstable.types import Completion, TopLogprobs

_WINDOW = 64  # newest ids to decode again with each new id; at most twice as many
_LATER = 7  # ids between a failed attempt to settle and the next one


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return a text up to the first of the stops, and this stop; None if it has none."""
    places = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    first, stop = min(places, default=(len(text), None))
    return text[:first], stop


class Growing:
    """The part of a growing answer that can be sent: no partial character, no possible stop.

    The results of `add`, followed by `rest` of the whole answer, make up that answer, up to its
    first stop.
    """

    def __init__(self, text: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        """Create an empty answer; `text` decodes ids."""
        self._text, self._stops = text, stops
        self._held = max(map(len, stops), default=1) - 1
        self._settled = ""  # text of earlier ids
        self._ids: list[int] = []
        self._most = 2 * _WINDOW
        self._sent = 0  # characters
        self.stopped = False
        """True if the answer so far contains a stop text."""

    def add(self, ids: Sequence[int]) -> str:
        """Append these ids, and return the text that can be sent now."""
        self._ids += ids
        tail = self._text(self._ids)
        known = (self._settled + tail).rstrip(UNKNOWN)
        ready, stop = cut_at(known, self._stops)
        self.stopped = stop is not None
        if not self.stopped:
            ready = known[: max(0, len(known) - self._held)]
        new = ready[self._sent :]
        self._sent += len(new)
        if len(self._ids) > self._most:
            self._settle(tail)
        return new

    def rest(self, whole: str) -> str:
        """Return the unsent part of the whole answer."""
        return whole[self._sent :]

    def _settle(self, tail: str) -> None:
        """Stop decoding old ids again, if their text and the rest's make up the text of both."""
        end = len(self._ids) - _WINDOW
        begun, left = self._text(self._ids[:end]), self._text(self._ids[end:])
        if begun + left == tail and not begun.endswith(UNKNOWN):
            self._settled += begun
            self._ids = self._ids[end:]
            self._most = 2 * _WINDOW
        else:
            self._most = len(self._ids) + _LATER  # decoded first, a token may lose its space


class Watch:
    """A listener to an answer's tokens, up to the token that completes a stop."""

    def __init__(
        self, decode: Callable[[list[int]], str], stops: Sequence[str], told: Told | None
    ) -> None:
        self._growing, self._told = Growing(decode, stops), told
        self._heard = Completion(token_ids=[], logprobs=[], finish_reason="stop", adapter=None)
        self._likeliest: TopLogprobs = []
        self._stopped = asyncio.Event()

    def __call__(
        self, ids: list[int], logprobs: list[float], likeliest: TopLogprobs | None = None, /
    ) -> None:
        for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            if self._stopped.is_set():
                return
            others = likeliest[place : place + 1] if likeliest else None
            self._heard.token_ids.append(token)
            self._heard.logprobs.append(logprob)
            self._likeliest += others or []
            if self._told is not None:
                self._told([token], [logprob], others)
            self._growing.add([token])
            if self._growing.stopped:
                self._stopped.set()

    async def until_stopped(self, asked: Coroutine[Any, Any, Completion]) -> Completion:
        """Return an engine's answer; cancels it and returns its part once it has a stop."""
        sampling = asyncio.ensure_future(asked)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([sampling, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not self._stopped.is_set():
                return sampling.result()
            return replace(self._heard, top_logprobs=self._likeliest or None)
        finally:
            await ended(sampling, stopped)


async def ended(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel these tasks and wait for them; ignores their exceptions."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
