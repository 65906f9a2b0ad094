"""Streaming of an answer token by token, in pieces that are sent as server-sent events."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from unstable.engines.base import Told
from unstable.prompts.text import UNKNOWN
from unstable.serving.growing import Growing
from unstable.serving.replies import Reply, ReplyPart, ServedSeat, Writer
from unstable.serving.requests import ChatRequest, TextRequest, as_error
from unstable.types import TopLogprobs


async def pieces(
    seat: ServedSeat, request: ChatRequest | TextRequest
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the pieces of an answer; closing the generator cancels the answer.

    Raises `ApiError` for an error before the first piece; a later error becomes a piece.
    """
    heard: asyncio.Queue[tuple[int, ReplyPart] | None] = asyncio.Queue()

    def told(index: int) -> Told:
        def tell(
            ids: list[int], logprobs: list[float], likeliest: TopLogprobs | None = None
        ) -> None:
            heard.put_nowait((index, ReplyPart(ids, logprobs, likeliest)))

        return tell

    asked = asyncio.create_task(seat.answer(request, [told(i) for i in range(request.answers)]))
    asked.add_done_callback(lambda _: heard.put_nowait(None))
    stream, is_first = _Pieces(seat, request), True
    try:
        while (token := await heard.get()) is not None:
            for piece in stream.next(*token):
                yield piece
                is_first = False
        if (error := asked.exception()) is None:
            for piece in stream.last(asked.result()):
                yield piece
        elif is_first:
            raise error
        else:
            yield as_error(error).body()
    finally:
        asked.cancel()


class _Pieces:
    """The pieces of one request, and the progress of its answers."""

    def __init__(self, seat: ServedSeat, request: ChatRequest | TextRequest) -> None:
        self._request = request
        self._writer = Writer(request, seat.strings)
        self._growing = [Growing(seat.strings.text, request.stops) for _ in range(request.answers)]
        # Tool calls can only be parsed at the end.
        self._is_whole = isinstance(request, ChatRequest) and bool(request.offered)
        self._begun = set[int]()
        self._held = [ReplyPart()] * request.answers  # tokens of an incomplete character
        self._strings = seat.strings

    def next(self, index: int, part: ReplyPart) -> Iterator[dict[str, Any]]:
        """Yield pieces that can be sent after an answer has got these tokens."""
        yield from self._begin(index)
        if self._is_whole:
            return
        text = self._growing[index].add(part.ids)
        wants_tokens = self._request.wants_tokens
        part, self._held[index] = part.after(self._held[index]), ReplyPart()
        if wants_tokens and self._strings.text(part.ids).endswith(UNKNOWN):
            part, self._held[index] = ReplyPart(), part
        if text or (part.ids and wants_tokens):
            yield self._writer.added(self._request.model, index, text, part)

    def _begin(self, index: int) -> Iterator[dict[str, Any]]:
        if isinstance(self._request, ChatRequest) and index not in self._begun:
            yield self._writer.begun(self._request.model, index)
        self._begun.add(index)

    def last(self, reply: Reply) -> Iterator[dict[str, Any]]:
        """Yield the pieces that end each answer, including text held back so far."""
        model = self._request.model
        for index, choice in enumerate(reply.choices):
            yield from self._begin(index)
            rest = self._growing[index].rest(choice.text)
            part = ReplyPart.of(choice.completion) if self._is_whole else self._held[index]
            if rest or (part.ids and self._request.wants_tokens):
                yield self._writer.added(model, index, rest, part)
            yield self._writer.ended(model, index, choice)
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield self._writer.counted(reply)


def event(data: Mapping[str, Any] | str, name: str = "") -> bytes:
    """Return a server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()
