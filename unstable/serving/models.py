"""Versions of a policy, each a model by its name, as one seat that answers for them all."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple, Self, TypeVar

from starlette.routing import BaseRoute

from unstable.config import RunConfig
from unstable.config.plugins import faults_to
from unstable.engines.base import Engine, EngineDiedError, Told, max_length
from unstable.prompts import (
    AnswerText,
    ChatTemplate,
    Tags,
    TokenStrings,
    find_tags,
    read_tool_calls,
)
from unstable.serving.growing import Growing, cut_at
from unstable.serving.replies import Choice, Reply, Seat, check_model, usage
from unstable.serving.requests import ApiError, ChatRequest, Request, TextRequest, is_token
from unstable.types import Completion, TopLogprobs
from unstable.types.seeds import derive_seed

_WAITING = 4  # times as many answers may wait as run at once
_AGAIN_S = 1  # after which one that was refused may ask again
_SEEDS = 2**63  # as many as ours: what comes in any other form becomes one of these
T = TypeVar("T")


class Limits(NamedTuple):
    """What a seat serves at most."""

    length: int  # tokens of prompt and answer together
    likeliest: int  # tokens beside each that is sampled, as the engine gives them
    at_once: int  # answers that the engine samples at once; of more, some wait

    @property
    def in_flight(self) -> int:
        """Answers that run or wait, at which a further request is refused."""
        return self.at_once * (1 + _WAITING)


@dataclass(slots=True)
class Counts:
    """Requests by how they ended, answers that run or wait, and tokens of what was answered."""

    asked: int = 0
    answered: int = 0
    refused: int = 0
    left: int = 0  # by who asked, before there was an answer
    failed: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0


class ModelsSeat:
    """Answers requests with an engine's models: what each name stands for is an adapter."""

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        decode: Callable[[Sequence[int]], str],
        adapters: Mapping[str, str | None],
        limits: Limits,
        *,
        seed: int,
    ) -> None:
        """`adapters` None is the base.

        `seed` decides the chance of requests that have none, by the order in which they come.
        """
        self._engine, self._template, self._decode = engine, template, decode
        self._adapters, self._limits = adapters, limits
        self._seed, self._asked = seed, count()
        self.strings = TokenStrings(decode)
        self.counts = Counts()
        self.died = asyncio.Event()
        """Set once the engine will never answer again."""
        self.why = ""
        """What it died of."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        engine: Engine,
        tokenizer: Any,
        adapters: Mapping[str, str | None],
        length: int,
    ) -> Self:
        """That of a resolved config's engine, whose model takes `length` tokens at most."""
        assert isinstance(config.actors.games_in_flight, int), "planning resolves auto"
        template = ChatTemplate(tokenizer, config.model.template_arguments)
        own = config.sampling.thoughts.tags
        tags = find_tags(tokenizer) if own == "auto" else Tags(*own)
        answers = AnswerText(tokenizer, tags, [*map(template.encoder.ids, tags)])
        limits = Limits(
            length=min(length, max_length(config)),
            likeliest=config.tracking.top_logprobs,
            at_once=config.actors.games_in_flight,
        )
        return cls(engine, template, answers.text, adapters, limits, seed=config.seed)

    def models(self) -> Sequence[str]:
        """The names that requests may ask for."""
        return list(self._adapters)

    async def answer(
        self, request: ChatRequest | TextRequest, told: Sequence[Told] | None
    ) -> Reply:
        """The answer, as `Seat.answer` says; cancelling it ends it in the engine too."""
        with self._counted():
            if self.counts.in_flight >= self._limits.in_flight:
                text = f"{self.counts.in_flight} answers run or wait; ask again later"
                raise ApiError(429, text, code="rate_limit_exceeded", retry_after_s=_AGAIN_S)
            prompt_ids, most = self._admit(request)
            seed = request.seed
            if seed is None:
                seed = derive_seed(self._seed, "served", next(self._asked))
            seeds = [seed, *(derive_seed(seed, "choice", index) for index in range(1, request.n))]
            heard: Sequence[Told | None] = told or [None] * request.n
            with self._in_flight(request.n):
                completions = await all_of(
                    self._sampled(request, prompt_ids, most, each % _SEEDS, hears)
                    for each, hears in zip(seeds, heard, strict=True)
                )
            choices = [choice_of(request, each, self._decode) for each in completions]
            reply = Reply(model=request.model, prompt_ids=prompt_ids, choices=choices)
            self._count(reply)
            return reply

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """A request, by how it ends."""
        how = "failed"
        self.counts.asked += 1
        try:
            yield
            how = "answered"
        except asyncio.CancelledError:
            how = "left"
            raise
        except ApiError:
            how = "refused"
            raise
        except EngineDiedError as error:
            self.why = self.why or str(error)
            self.died.set()
            raise
        finally:
            setattr(self.counts, how, getattr(self.counts, how) + 1)

    @contextlib.contextmanager
    def _in_flight(self, answers: int) -> Iterator[None]:
        self.counts.in_flight += answers
        try:
            yield
        finally:
            self.counts.in_flight -= answers

    def _count(self, reply: Reply) -> None:
        tokens = usage(reply)
        self.counts.prompt_tokens += tokens["prompt_tokens"]
        self.counts.sampled_tokens += tokens["completion_tokens"]

    def _admit(self, request: ChatRequest | TextRequest) -> tuple[list[int], int]:
        """The prompt's ids, and the most tokens of its answer; raises `ApiError`."""
        check_model(self, request.model)
        is_chat, limits = isinstance(request, ChatRequest), self._limits
        if (request.likeliest or 0) > limits.likeliest:
            raise ApiError(
                400,
                f"{request.likeliest} likeliest tokens: at most {limits.likeliest} are served",
                param="top_logprobs" if is_chat else "logprobs",
            )
        prompt_ids = encoded(self._template, request)
        room = limits.length - len(prompt_ids)
        most = room if request.most_tokens is None else request.most_tokens
        if not 1 <= most <= room:
            raise ApiError(
                400,
                f"{len(prompt_ids)} prompt tokens and {max(most, 1)} of an answer are more than "
                f"the {limits.length} that are served",
                param="messages" if is_chat else "prompt",
                code="context_length_exceeded",
            )
        return prompt_ids, most

    async def _sampled(
        self, request: Request, prompt_ids: list[int], most: int, seed: int, told: Told | None
    ) -> Completion:
        """An answer; it ends with the token that completes a stop of the request."""
        watch = _Watch(self._decode, request.stops, told) if request.stops else None
        asked = self._engine.generate(
            prompt_ids,
            adapter=self._adapters[request.model],
            temperature=1.0 if request.temperature is None else request.temperature,
            max_tokens=most,
            seed=seed,
            told=watch or told,
        )
        try:
            if watch is None:
                return await asked
            return watch.cut(await watch.until_stopped(asked))
        except ValueError as error:
            raise ApiError(400, str(error)) from None


class _Watch:
    """What is heard of an answer's tokens, up to the one that completes a stop."""

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


async def all_of(coroutines: Iterator[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of them return; the first that one of them raises ends the others."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await ended(*tasks)


def encoded(template: ChatTemplate, request: ChatRequest | TextRequest) -> list[int]:
    """The ids of what is asked; raises `ApiError` for what the model's template does not take."""
    faults = list[BaseException]()
    with faults_to(faults.append):  # a template raises what it likes
        if isinstance(request, ChatRequest):
            return template.encode(request.chat, request.offered)
        if isinstance(request.prompt, str):
            return template.encoder.encode([request.prompt])
        return list(request.prompt)
    name = "messages" if isinstance(request, ChatRequest) else "prompt"
    text = f"{name}: the model's tokenizer or its chat template refuses this ({faults[0]})"
    raise ApiError(400, text[:500], param=name)


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
