"""An answer token by token, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from unstable.engines.base import Told
from unstable.serving.replies import Choice, Reply, Seat, Writer, cut_at
from unstable.serving.requests import ChatRequest, TextRequest, as_error

_Heard = asyncio.Queue[tuple[int, list[int], list[float]] | None]


async def pieces(seat: Seat, request: ChatRequest | TextRequest) -> AsyncGenerator[bytes]:
    """The events of an answer; closing it gives the answer up.

    Raises `ApiError` for what is wrong before the first of them; later it is an event.
    """
    heard: _Heard = asyncio.Queue()

    def told(index: int) -> Told:
        return lambda ids, logprobs: heard.put_nowait((index, ids, logprobs))

    asked = asyncio.create_task(seat.answer(request, [told(i) for i in range(request.n)]))
    asked.add_done_callback(lambda _: heard.put_nowait(None))
    stream, is_first = _Stream(seat, request), True
    try:
        while (token := await heard.get()) is not None:
            for piece in stream.next(*token):
                yield piece
                is_first = False
        for piece in stream.last(asked.result()):
            yield piece
            is_first = False
    except Exception as error:
        if is_first:
            raise
        yield event(as_error(error).body())
    finally:
        asked.cancel()


class _Stream:
    """The events of one request, and how far its answers are sent."""

    def __init__(self, seat: Seat, request: ChatRequest | TextRequest) -> None:
        self._request = request
        self._writer = Writer(request, seat.strings)
        self._growing = [_Growing(seat.strings.text, request.stops) for _ in range(request.n)]
        # Calls of tools are known in the end.
        self._is_whole = isinstance(request, ChatRequest) and bool(request.offered)
        self._begun = set[int]()

    def next(self, index: int, ids: list[int], logprobs: list[float]) -> Iterator[bytes]:
        """Those that can be sent now that an answer has got these tokens."""
        yield from self._begin(index)
        text = "" if self._is_whole else self._growing[index].add(ids)
        if text or (self._request.likeliest is not None and not self._is_whole):
            yield event(self._writer.added(self._request.model, index, text, ids, logprobs))

    def _begin(self, index: int) -> Iterator[bytes]:
        if isinstance(self._request, ChatRequest) and index not in self._begun:
            yield event(self._writer.begun(self._request.model, index))
        self._begun.add(index)

    def last(self, reply: Reply) -> Iterator[bytes]:
        """Those that end each answer, what was held back among them."""
        model = self._request.model
        for index, choice in enumerate(reply.choices):
            yield from self._begin(index)
            if rest := self._growing[index].rest(choice.text):
                yield event(self._writer.added(model, index, rest, *self._tokens(choice)))
            yield event(self._writer.ended(model, index, choice))
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield event(self._writer.counted(reply))
        yield event("[DONE]")

    def _tokens(self, choice: Choice) -> tuple[list[int], list[float]]:
        """Those of an answer that is sent at once."""
        if not self._is_whole or choice.completion is None:
            return [], []
        return choice.completion.token_ids, choice.completion.logprobs


def event(data: dict[str, Any] | str) -> bytes:
    """A server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


class _Growing:
    """The text of an answer whose tokens come one by one."""

    def __init__(self, text: Callable[[list[int]], str], stops: Sequence[str]) -> None:
        self._text = text
        self._stops = stops
        self._ids: list[int] = []
        self._sent = 0  # characters

    def add(self, ids: list[int]) -> str:
        """What can be sent now: no half of a character, and nothing that may begin a stop."""
        self._ids += ids
        whole = self._text(self._ids)
        ready = cut_at(whole, self._stops)[0]
        if ready == whole:
            held = max(map(len, self._stops), default=1) - 1
            ready = whole[: len(whole) - held].rstrip("\ufffd") if held else whole.rstrip("\ufffd")
        new = ready[self._sent :]
        self._sent += len(new)
        return new

    def rest(self, whole: str) -> str:
        """What has not been sent of the whole answer."""
        return whole[self._sent :]
