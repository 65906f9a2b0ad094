"""The text of an answer whose tokens come one by one, up to the first text that ends it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from unstable.engines.base import Told
from unstable.prompts.text import UNKNOWN
from unstable.types import Completion, TopLogprobs

_WINDOW = 64  # newest ids that are put into words anew with each that comes, or up to twice as many
_LATER = 7  # ids after which it is tried again, where that cannot be


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """A text up to the first of the stops, and whether there is one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


class Growing:
    """An answer as far as it can be sent: no half of a character, nothing that may begin a stop.

    All that `add` returns and then `rest` of the whole answer are that answer, up to its first
    stop.
    """

    def __init__(self, text: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        """`text` puts ids into words."""
        self._text, self._stops = text, stops
        self._held = max(map(len, stops), default=1) - 1
        self._settled = ""  # of ids that came before these
        self._ids: list[int] = []
        self._most = 2 * _WINDOW
        self._sent = 0  # characters
        self.stopped = False
        """Whether there is a stop in the answer so far."""

    def add(self, ids: Sequence[int]) -> str:
        """Take these ids too, and return what can be sent now."""
        self._ids += ids
        tail = self._text(self._ids)
        known = (self._settled + tail).rstrip(UNKNOWN)
        ready, self.stopped = cut_at(known, self._stops)
        if not self.stopped:
            ready = known[: max(0, len(known) - self._held)]
        new = ready[self._sent :]
        self._sent += len(new)
        if len(self._ids) > self._most:
            self._settle(tail)
        return new

    def rest(self, whole: str) -> str:
        """What has not been sent of the whole answer."""
        return whole[self._sent :]

    def _settle(self, tail: str) -> None:
        """Put no more into words again what is settled, where the text of two parts is theirs."""
        end = len(self._ids) - _WINDOW
        begun, left = self._text(self._ids[:end]), self._text(self._ids[end:])
        if begun + left == tail and not begun.endswith(UNKNOWN):
            self._settled += begun
            self._ids = self._ids[end:]
            self._most = 2 * _WINDOW
        else:
            self._most = len(self._ids) + _LATER  # some tokens lose their space where they begin


class Watch:
    """A listener to an answer's tokens, up to the one that completes a stop."""

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

    async def until_stopped(self, asked: Coroutine[Any, Any, Completion]) -> Completion | None:
        """The answer of an engine; None where it is given up, since there is a stop in it."""
        sampling = asyncio.ensure_future(asked)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([sampling, stopped], return_when=asyncio.FIRST_COMPLETED)
            return None if self._stopped.is_set() else sampling.result()
        finally:
            await ended(sampling, stopped)

    def cut(self, whole: Completion | None) -> Completion:
        """The answer up to its stop."""
        if whole is not None:
            return whole
        return replace(self._heard, top_logprobs=self._likeliest or None)


async def ended(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel what still runs, and let it end; what it raises is not asked for any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
