"""A seat that serves a policy's versions, each as a model with its own name."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Self, TypeVar

from msgspec import structs
from starlette.routing import BaseRoute

from unstable.config import RunConfig
from unstable.config.plugins import faults_to
from unstable.engines.base import Engine, EngineDiedError, SamplingRequest, Told, max_length
from unstable.prompts import (
    AnswerText,
    ChatTemplate,
    TokenStrings,
    read_tool_calls,
)
from unstable.serving.forms import Forms, check_forms
from unstable.serving.growing import Watch, cut_at, ended
from unstable.serving.replies import Choice, Reply, ReplyPart, ServedSeat, check_model, usage
from unstable.serving.requests import ApiError, ChatRequest, Request, TextRequest, is_token
from unstable.types import Completion
from unstable.types.seeds import derive_seed

_WAITING = 4  # maximum number of waiting answers per running answer
_AGAIN_S = 1  # Retry-After header of status 429
_SHORT = 2**15  # characters; the event loop encodes shorter requests
_BLANKS = 4  # factor on a token's length, because tokenizers may drop spaces
_SEEDS = 2**63  # number of seeds; larger seeds are reduced modulo this
T = TypeVar("T")


class Limits(NamedTuple):
    """The limits of a seat."""

    length: int  # tokens of prompt and answer together
    likeliest: int  # likeliest tokens that the engine returns per sampled token
    at_once: int  # answers that the engine samples concurrently

    @property
    def in_flight(self) -> int:
        """Number of running or waiting answers at which the seat refuses further requests."""
        return self.at_once * (1 + _WAITING)


@dataclass(slots=True)
class RequestCounts:
    """Counts of requests by outcome, of answers in flight, and of tokens in replies."""

    asked: int = 0
    answered: int = 0
    refused: int = 0
    left: int = 0  # client disconnected before the answer
    failed: int = 0
    in_flight: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0


class ModelsSeat:
    """A seat that answers requests with an engine's models, each name mapped to an adapter."""

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        decode: Callable[[Sequence[int]], str],
        adapters: Mapping[str, str | None],
        limits: Limits,
        forms: Forms,
        *,
        seed: int,
        longest: int | None = None,
    ) -> None:
        """Create the seat; the adapter None is the base.

        `longest` is the most characters of a token, None if unbounded. Requests without a seed get
        one derived from `seed` and the order of their arrival.
        """
        self._engine, self._template, self._decode = engine, template, decode
        self._adapters, self._limits = adapters, limits
        self._seed, self._asked = seed, count()
        self.strings = TokenStrings(decode)
        self._forms, self._longest = forms, longest
        self._encoding = asyncio.Lock()
        self.counts = RequestCounts()
        self.died = asyncio.Event()
        """Set when the engine dies."""
        self.why = ""
        """Error of the dead engine."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        engine: Engine,
        tokenizer: Any,
        adapters: Mapping[str, str | None],
        length: int,
    ) -> Self:
        """Return the seat of a resolved config's engine, whose model takes `length` tokens."""
        assert isinstance(config.actors.games_in_flight, int), "planning resolves auto"
        template = ChatTemplate(tokenizer, config.model.template_arguments)
        answers = AnswerText(tokenizer, config.sampling.thoughts)
        limits = Limits(
            length=min(length, max_length(config)),
            likeliest=config.tracking.top_logprobs,
            at_once=config.actors.games_in_flight,
        )
        forms, longest = Forms(tokenizer), longest_token(tokenizer)
        made = engine, template, answers.text, adapters, limits, forms
        return cls(*made, seed=config.seed, longest=longest)

    def models(self) -> Sequence[str]:
        return list(self._adapters)

    async def answer(
        self, request: ChatRequest | TextRequest, told: Sequence[Told] | None
    ) -> Reply:
        """Answer a request, see `ServedSeat.answer`; cancellation also ends it in the engine."""
        with self._counted():
            self._check(request)
            seed = request.seed
            if seed is None:
                seed = derive_seed(self._seed, "served", next(self._asked))
            seeds = [seed, *(derive_seed(seed, "choice", i) for i in range(1, request.answers))]
            heard: Sequence[Told | None] = told or [None] * request.answers
            with self._in_flight(request.answers):
                prompts = await self._prompts(request)
                most = self._most(request, prompts)
                completions = await all_of(
                    self._answered(
                        request,
                        SamplingRequest(
                            prompt_ids=prompts[index // request.n],
                            adapter=self._adapters[request.model],
                            temperature=1.0 if request.temperature is None else request.temperature,
                            max_tokens=most,
                            seed=each % _SEEDS,
                            told=hears,
                        ),
                    )
                    for index, (each, hears) in enumerate(zip(seeds, heard, strict=True))
                )
                befores = await self._befores(request, prompts)
            choices = [
                replace(
                    choice_of(request, each, self._decode, prompts[index // request.n]),
                    before=befores[index // request.n],
                )
                for index, each in enumerate(completions)
            ]
            reply = Reply(model=request.model, prompts=prompts, choices=choices)
            self._count(reply)
            return reply

    async def count(self, request: ChatRequest) -> int:
        with self._counted():
            self._check(request)
            with self._in_flight(1):
                (ids,) = await self._prompts(request)
            return len(ids)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request by its outcome."""
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

    def _check(self, request: ChatRequest | TextRequest) -> None:
        """Raise `ApiError` for unsupported requests or too many, before building a prompt."""
        if self.counts.in_flight >= self._limits.in_flight:
            text = f"{self.counts.in_flight} answers in flight, the maximum; retry later"
            raise ApiError(429, text, code="rate_limit_exceeded", retry_after_s=_AGAIN_S)
        check_model(self, request.model)
        is_chat = isinstance(request, ChatRequest)
        if (request.likeliest or 0) > self._limits.likeliest:
            name = "top_logprobs" if is_chat else "logprobs"
            text = f"{name} = {request.likeliest}: must be <= {self._limits.likeliest}"
            raise ApiError(400, text, param=name)
        if isinstance(request, ChatRequest) and request.legal_moves is not None:
            text = "legal_moves: supported only by seats of games; remove it"
            raise ApiError(400, text, param="legal_moves")
        if request.is_formed:
            check_forms()
        size = request.characters
        if self._longest is not None and size > self._longest * self._limits.length:
            text = f"{size:,} characters exceed the context of {self._limits.length} tokens"
            raise ApiError(400, text, param=_prompt(request), code="context_length_exceeded")

    async def _prompts(self, request: ChatRequest | TextRequest) -> list[list[int]]:
        """Return the prompts' ids; encodes long ones in a thread, one request at a time."""
        if request.characters < _SHORT:
            return encoded(self._template, request)
        async with self._encoding:
            return await asyncio.to_thread(encoded, self._template, request)

    def _most(self, request: ChatRequest | TextRequest, prompts: Sequence[Sequence[int]]) -> int:
        """Return the most tokens of an answer; raises `ApiError` if there is no room."""
        if not all(prompts):
            raise ApiError(400, f"{_prompt(request)}: empty prompt", param=_prompt(request))
        longest = max(map(len, prompts))
        room = self._limits.length - longest
        most = room if request.most_tokens is None else request.most_tokens
        if not 0 <= most <= room or not (most or request.most_tokens == 0):
            name = "max_tokens" if room > 0 and request.most_tokens else _prompt(request)
            raise ApiError(
                400,
                f"{longest} prompt tokens plus {max(most, 1)} answer tokens exceed the context of "
                f"{self._limits.length} tokens; shorten the prompt or reduce max_tokens",
                param=name,
                code="context_length_exceeded",
            )
        return most

    async def _answered(
        self, request: ChatRequest | TextRequest, asked: SamplingRequest
    ) -> Completion:
        if asked.max_tokens == 0:  # only the prompt's logprobs (echo)
            return Completion(token_ids=[], logprobs=[], finish_reason="length", adapter=None)
        sample = partial(self._sampled, request.stops)
        if isinstance(request, ChatRequest) and request.is_formed:
            return await self._forms.answer(request, asked, sample)
        return await sample(asked)

    async def _befores(
        self, request: ChatRequest | TextRequest, prompts: Sequence[list[int]]
    ) -> list[ReplyPart | None]:
        """Return each prompt's tokens with logprobs and likeliest ones; None if not echoed."""
        if not isinstance(request, TextRequest) or not request.echo or request.logprobs is None:
            return [None] * len(prompts)
        adapter, room = self._adapters[request.model], asyncio.Semaphore(self._limits.at_once)

        async def after(greedy: SamplingRequest, end: int) -> Completion:
            async with room:
                ids = greedy.prompt_ids[:end]
                return await self._engine.generate(structs.replace(greedy, prompt_ids=ids))

        async def before(ids: list[int]) -> ReplyPart:
            own = await self._engine.score(ids[:1], [ids[1:]], adapter=adapter) if ids[1:] else [[]]
            ends = range(1, len(ids) if request.logprobs else 1)
            greedy = SamplingRequest(
                prompt_ids=ids, adapter=adapter, temperature=0.0, max_tokens=1, seed=0
            )
            likeliest = await all_of(after(greedy, end) for end in ends)
            others = [(each.top_logprobs or [[]])[0] for each in likeliest]
            return ReplyPart(ids, [None, *own[0]], [[], *(others or [[] for _ in own[0]])])

        try:
            return list(await all_of(map(before, prompts)))
        except ValueError as error:  # e.g. invalid ids
            raise ApiError(400, str(error), param="prompt") from None

    async def _sampled(self, stops: Sequence[str], asked: SamplingRequest) -> Completion:
        """Sample an answer, which ends with the token that completes one of the stops."""
        try:
            if not stops:
                return await self._engine.generate(asked)
            watch = Watch(self._decode, stops, asked.told)
            answer = self._engine.generate(structs.replace(asked, told=watch))
            return await watch.until_stopped(answer)
        except ValueError as error:
            raise ApiError(400, str(error)) from None


def longest_token(tokenizer: Any) -> int | None:
    """Return the most characters per token; None if an unknown word is one token."""
    if tokenizer.unk_token_id is not None:
        return None
    return _BLANKS * max(map(len, tokenizer.get_vocab()))


async def all_of(coroutines: Iterator[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all coroutines and return their results; the first error cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await ended(*tasks)


def encoded(template: ChatTemplate, request: ChatRequest | TextRequest) -> list[list[int]]:
    """Return the ids of each prompt; raises `ApiError` if the model's template fails."""
    faults = list[BaseException]()
    with faults_to(faults.append):  # a template may raise any exception
        if isinstance(request, ChatRequest):
            return [template.encode(request.chat, request.offered)]
        return [
            template.encoder.encode([each]) if isinstance(each, str) else list(each)
            for each in request.prompt
        ]
    name = _prompt(request)
    text = f"{name}: rejected by the model's tokenizer or chat template ({faults[0]})"
    raise ApiError(400, text[:500], param=name)


def _prompt(request: Request) -> str:
    """Return the name of the request's field that holds the prompt."""
    return "messages" if isinstance(request, ChatRequest) else "prompt"


def choice_of(
    request: Request,
    completion: Completion,
    decode: Callable[[Sequence[int]], str],
    prompt_ids: Sequence[int],
) -> Choice:
    """Convert a completion to a choice: its text up to the first stop, and its tool calls."""
    text, stop = cut_at(decode(completion.token_ids), request.stops)
    finish: str = completion.finish_reason if stop is None else "stop"
    calls: list[dict[str, Any]] = []
    if isinstance(request, ChatRequest) and request.offered:
        text, calls = read_tool_calls(text)
        calls = calls if request.parallel_tool_calls else calls[:1]
        finish = "tool_calls" if calls else finish
    if isinstance(request, TextRequest) and request.echo:
        text = decode(prompt_ids) + text
    return Choice(text=text, finish_reason=finish, completion=completion, calls=calls, stop=stop)


class ForToken:
    """One seat at one port, for clients with the token; None admits everyone."""

    def __init__(self, seat: ServedSeat, token: str | None) -> None:
        self._seat, self._token = seat, token

    def seat(self, path: Mapping[str, str], token: str | None) -> ServedSeat:
        """Return the seat; raises `ApiError` for another token."""
        if self._token is not None and not is_token(token, self._token):
            raise ApiError(401, "missing or wrong bearer token", code="invalid_api_key")
        return self._seat

    def routes(self) -> list[BaseRoute]:
        return []
