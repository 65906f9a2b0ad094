"""Versions of a policy, each a model by its name, as one seat that answers for them all."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from starlette.routing import BaseRoute

from unstable.engines.base import Engine, Told
from unstable.prompts import ChatTemplate, TokenStrings, read_tool_calls
from unstable.serving.replies import Choice, Reply, Seat, check_model, cut_at
from unstable.serving.requests import ApiError, ChatRequest, Request, TextRequest, is_token
from unstable.types import Completion
from unstable.types.seeds import derive_seed


class ModelsSeat:
    """Answers requests with an engine's models: what each name stands for is an adapter."""

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        decode: Callable[[Sequence[int]], str],
        adapters: Mapping[str, str | None],
        *,
        max_length: int,
        top_logprobs: int,
        seed: int,
    ) -> None:
        """Prompt and answer together have at most `max_length` tokens.

        `top_logprobs` is what the engine gives beside each token, and `seed` decides the chance of
        requests that have none, by the order in which they come. `adapters` None is the base.
        """
        self._engine, self._template, self._decode = engine, template, decode
        self._adapters = adapters
        self._max_length, self._top_logprobs = max_length, top_logprobs
        self._seed, self._asked = seed, count()
        self.strings = TokenStrings(decode)

    def models(self) -> Sequence[str]:
        """The names that requests may ask for."""
        return list(self._adapters)

    async def answer(
        self, request: ChatRequest | TextRequest, told: Sequence[Told] | None
    ) -> Reply:
        """The answer, as `Seat.answer` says."""
        check_model(self, request.model)
        prompt_ids = encoded(self._template, request)
        if (request.likeliest or 0) > self._top_logprobs:
            raise ApiError(
                400,
                f"{request.likeliest} likeliest tokens: at most {self._top_logprobs} are served",
                param="top_logprobs" if isinstance(request, ChatRequest) else "logprobs",
            )
        room = self._max_length - len(prompt_ids)
        most = room if request.most_tokens is None else request.most_tokens
        if not 1 <= most <= room:
            raise ApiError(
                400,
                f"{len(prompt_ids)} prompt tokens and {max(most, 1)} of an answer are more than "
                f"the {self._max_length} that are served",
                param="messages" if isinstance(request, ChatRequest) else "prompt",
                code="context_length_exceeded",
            )
        seed = request.seed
        if seed is None:
            seed = derive_seed(self._seed, "served", next(self._asked))
        seeds = [seed, *(derive_seed(seed, "choice", index) for index in range(1, request.n))]
        temperature = 1.0 if request.temperature is None else request.temperature

        async def sampled(index: int) -> Completion:
            try:
                return await self._engine.generate(
                    prompt_ids,
                    adapter=self._adapters[request.model],
                    temperature=temperature,
                    max_tokens=most,
                    seed=seeds[index],
                    told=None if told is None else told[index],
                )
            except ValueError as error:
                raise ApiError(400, str(error)) from None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sampled(index)) for index in range(request.n)]
        choices = [choice_of(request, task.result(), self._decode) for task in tasks]
        return Reply(model=request.model, prompt_ids=prompt_ids, choices=choices)


def encoded(template: ChatTemplate, request: ChatRequest | TextRequest) -> list[int]:
    """The ids of what is asked; raises `ApiError` for a chat that the template does not take."""
    if isinstance(request, TextRequest):
        if isinstance(request.prompt, list):
            return list(request.prompt)
        return template.encoder.encode([request.prompt])
    try:
        return template.encode(request.chat, request.offered)
    except Exception as error:  # a template raises what it likes
        text = f"messages: the model's chat template refuses them ({error})"
        raise ApiError(400, text[:500], param="messages") from None


def choice_of(
    request: Request, completion: Completion, decode: Callable[[Sequence[int]], str]
) -> Choice:
    """An answer as text, up to the first stop, with the calls of tools that are in it."""
    text, stopped = cut_at(decode(completion.token_ids), request.stops)
    finish: str = "stop" if stopped else completion.finish_reason
    calls: list[dict[str, Any]] = []
    if isinstance(request, ChatRequest) and request.offered:
        text, calls = read_tool_calls(text)
        finish = "tool_calls" if calls else finish
    return Choice(text=text, finish_reason=finish, completion=completion, calls=calls)


class ForToken:
    """One seat at one port, for whoever has the token; None: for everyone."""

    def __init__(self, seat: Seat, token: str | None) -> None:
        self._seat, self._token = seat, token

    def seat(self, path: Mapping[str, str], token: str | None) -> Seat:
        """The seat; raises `ApiError` for another token."""
        if self._token is not None and not is_token(token, self._token):
            raise ApiError(401, "the token is missing or wrong", code="invalid_api_key")
        return self._seat

    def routes(self) -> list[BaseRoute]:
        """None besides the seat's."""
        return []
