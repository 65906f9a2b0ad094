"""The embedded engine: serves any number of adapters of one model on a CPU, without vLLM.

Requests are batched continuously: each step computes the next token of every running request and
the uncached part of every new prompt. `forward.py` has two ways to do so: one packed row with our
own attention, which copies a prompt's prefix from any slot that holds it under the same adapter, or
the model's own cache.
"""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from unstable.config import RunConfig
from unstable.engines.base import (
    Engine,
    EngineDiedError,
    SamplingRequest,
    check_request,
    max_length,
)
from unstable.engines.embedded.forward import make_forward
from unstable.engines.embedded.lora import GroupedLora
from unstable.engines.embedded.requests import EngineRequest, Running
from unstable.engines.embedded.sampling import restrict, sample, score, top_logprobs, uniforms
from unstable.engines.embedded.slots import Ints, SlotPlacement
from unstable.engines.scoring import check_scoring, next_token, score_all
from unstable.models.base import load_model, stop_token_ids
from unstable.models.norms import fuse_norms
from unstable.models.shape import read_shape
from unstable.types import Adapter, Completion

_STEP_TOKENS = 1024  # uncached prompt tokens per step, unless a single prompt has more
_LONGEST = ("max_position_embeddings", "max_seq_len")  # config fields for the maximum length
_SETTLE_PASSES = 8  # event loop passes between steps, so that games can send their next requests


class EmbeddedEngine:
    """An engine for a Hugging Face causal language model, which it owns until `close`.

    `max_requests` run at once, and the engine caches as many prefixes. Set it to about the number
    of games in flight, since attention also passes over idle slots between busy ones. Prompt and
    completion together have at most `max_length` tokens. A forward blocks the event loop. The same
    requests in the same order get bitwise equal answers; with other concurrent requests they differ
    only by rounding. With `packed=False` the model uses its own attention, as a model that cannot
    be packed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop_token_ids: Collection[int],
        *,
        max_requests: int = 64,
        max_length: int = 4096,
        top_logprobs: int = 0,
        packed: bool = True,
    ) -> None:
        config = model.config.get_text_config()
        limits = [getattr(config, name, None) for name in _LONGEST]  # Mamba has no limit
        self._max_length = min([max_length, *filter(None, limits)])
        self._vocab_size = config.vocab_size
        self._stops_V = np.isin(np.arange(self._vocab_size), [*stop_token_ids])
        self._top_logprobs = top_logprobs
        fuse_norms(model)  # as the learner does, so that both round alike
        self._lora = GroupedLora(model)
        self._forward = make_forward(
            model, self._lora, max_requests, self._max_length, packed=packed
        )
        self._table = self._forward.table
        self._waiting: deque[EngineRequest] = deque()
        self._running = Running(max_requests, self._max_length)
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        names = ("requests", "prompt_tokens", "cached_prompt_tokens", "sampled_tokens")
        steps = ("decode_steps", "prefill_seconds", "decode_seconds")
        self._counts = dict.fromkeys(names + steps, 0.0)

    async def load(self, weights: Adapter) -> None:
        self._lora.add(weights)

    async def unload(self, name: str) -> None:
        assert all(each.asked.adapter != name for each in self._in_flight), f"{name} is in use"
        self._lora.remove(name)
        self._table.forget(name)

    async def forget_prefixes(self) -> None:
        assert not self._in_flight, "requests are in flight"
        self._table.clear()

    async def generate(self, request: SamplingRequest) -> Completion:
        """Sample a completion, see `Engine.generate`; cancellation frees its slot."""
        check_request(request, vocab_size=self._vocab_size, max_length=self._max_length)
        answer = await self._ask(request)
        assert isinstance(answer, Completion)
        return answer

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuations: Sequence[Sequence[int]],
        *,
        adapter: str | None,
    ) -> list[list[float]]:
        """Return logprobs of continuations, see `Engine.score`.

        Computes the prompt once, and once each beginning that continuations share.
        """
        check_scoring(
            prompt_ids, continuations, vocab_size=self._vocab_size, max_length=self._max_length
        )

        async def after(beginning: list[int], next_ids: list[int]) -> list[float]:
            request = next_token([*prompt_ids, *beginning], adapter)
            logprobs = await self._ask(request, next_ids)
            assert isinstance(logprobs, list)
            return logprobs

        return await score_all(continuations, after)

    async def _ask(
        self, asked: SamplingRequest, next_ids: Sequence[int] | None = None
    ) -> Completion | list[float]:
        """Return the completion, or the logprobs of `next_ids`; cancellation frees its slot."""
        if self._failure is not None:
            raise self._failure
        if asked.adapter not in self._lora.versions:
            raise ValueError(f"adapter {asked.adapter!r} not found; load it first")
        request = EngineRequest(
            asked=asked,
            prompt_ids=np.frombuffer(array("q", asked.prompt_ids), dtype=np.int64),
            answer=asyncio.get_running_loop().create_future(),
            next_ids=next_ids,
        )
        self._waiting.append(request)
        self._work.set()
        if self._task is None:
            self._task = asyncio.create_task(self._serve(), name="embedded engine")
            self._task.add_done_callback(self._fail)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._withdraw(request)
            raise

    def stats(self) -> dict[str, float]:
        """Return counters and two gauges; tokens split a step's seconds into prefill and decode."""
        gauges = {"running": len(self._running.requests), "waiting": len(self._waiting)}
        return self._counts | gauges

    async def sleep(self) -> None:
        """Do nothing: the engine uses no GPU."""

    async def wake(self) -> None:
        """Do nothing, like `sleep`."""

    async def close(self) -> None:
        """Fail all requests in flight and restore the model's original behavior."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._failure = self._failure or RuntimeError("the engine is closed")
        self._lora.detach()
        self._forward.close()

    @property
    def _in_flight(self) -> list[EngineRequest]:
        return [*self._waiting, *self._running.requests.values()]

    async def _serve(self) -> None:
        while True:
            await self._work.wait()
            for _ in range(_SETTLE_PASSES):
                await asyncio.sleep(0)
            if self._waiting or self._running.requests:
                self._step()
            else:
                self._work.clear()

    def _fail(self, task: asyncio.Task[None]) -> None:
        """Fail all waiting, running and later requests after the serving task has ended."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._failure = RuntimeError("the engine is closed")
        else:
            self._failure = EngineDiedError(f"{type(error).__name__}: {error}")
            self._failure.__cause__ = error
        for request in self._in_flight:
            if not request.answer.done():
                request.answer.set_exception(self._failure)
        self._waiting.clear()
        self._running.requests.clear()

    def _withdraw(self, request: EngineRequest) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        elif self._running.requests.get(request.slot) is request:
            self._release(request.slot)

    def _release(self, slot: int) -> None:
        del self._running.requests[slot]
        self._table.release(slot)

    @torch.inference_mode()
    def _step(self) -> None:
        """Sample one token for each request that runs or can begin."""
        began = time.perf_counter()
        placements = self._admit()
        running, table = self._running, self._table
        slots = np.fromiter(running.requests, np.int64)
        weights, loras = running.weights[slots], running.loras[slots]
        # Whole versions (without LoRA) first, newest to oldest; then the base and LoRAs.
        order = np.lexsort((slots, loras - weights))
        slots = slots[order]
        computed = int((table.length[slots] - table.computed[slots]).sum())
        logits = self._forward.logits(slots, weights[order], loras[order], placements)
        table.computed[slots] = table.length[slots]
        requests = [running.requests[slot] for slot in slots.tolist()]
        scores = score(logits, [request.next_ids for request in requests])
        restrict(logits, [request.asked.allowed_token_ids for request in requests])
        temperatures = torch.from_numpy(running.temperatures[slots])
        token_ids, logprobs = sample(
            logits,
            temperatures,
            torch.from_numpy(
                uniforms(running.seeds[slots], table.length[slots] - running.begins[slots])
            ),
        )
        if self._top_logprobs:
            found = top_logprobs(logits, temperatures, self._top_logprobs)
            for request, at_token in zip(requests, found, strict=True):
                request.top_logprobs.append(at_token)
        self._record(requests, slots, np.array(token_ids), logprobs, scores)
        seconds = time.perf_counter() - began
        decoded = (len(slots) - len(placements)) / computed
        self._counts["decode_steps"] += len(scores) < len(slots)
        self._counts["sampled_tokens"] += len(slots) - len(scores)
        self._counts["prefill_seconds"] += seconds * (1 - decoded)
        self._counts["decode_seconds"] += seconds * decoded

    def _admit(self) -> list[SlotPlacement]:
        """Start waiting requests, in the order of their arrival, while slots and the step allow."""
        placements: list[SlotPlacement] = []
        tokens = 0
        while self._waiting and tokens < _STEP_TOKENS:
            request = self._waiting[0]
            placement = self._table.place(request.prompt_ids, request.asked.adapter)
            if placement is None:
                break
            self._waiting.popleft()
            request.slot = placement.slot
            self._running.add(request, self._lora.versions[request.asked.adapter])
            tokens += len(request.prompt_ids) - placement.start
            placements.append(placement)
            if request.next_ids is None:
                self._counts["requests"] += 1
                self._counts["prompt_tokens"] += len(request.prompt_ids)
                self._counts["cached_prompt_tokens"] += placement.start
        # Set last: a later placement must not count positions that this step has not copied yet.
        for placement in placements:
            self._table.computed[placement.slot] = placement.start
        return placements

    def _record(
        self,
        requests: Sequence[EngineRequest],
        slots: Ints,
        token_ids: Ints,
        logprobs: Sequence[float],
        scores: Mapping[int, list[float]],
    ) -> None:
        """Append sampled tokens to completions and resolve the futures of finished requests.

        Passes listeners the token of their request. Rows in `scores` resolve to their scores
        instead.
        """
        running, table = self._running, self._table
        running.logprobs[slots, table.length[slots]] = logprobs
        table.append(slots, token_ids)
        for row, request in enumerate(requests):
            if (told := request.asked.told) is not None:
                newest = request.top_logprobs[-1:] if self._top_logprobs else None
                told([int(token_ids[row])], [float(logprobs[row])], newest)
        stopped = self._stops_V[token_ids]
        ended = stopped | (table.length[slots] == running.ends[slots])
        for row in np.flatnonzero(ended).tolist():
            slot, is_stop, request = int(slots[row]), bool(stopped[row]), requests[row]
            places = slice(len(request.prompt_ids), int(table.length[slot]))
            answer = scores.get(row) or Completion(
                token_ids=table.ids[slot, places].tolist(),
                logprobs=running.logprobs[slot, places].tolist(),
                finish_reason="stop" if is_stop else "length",
                adapter=request.asked.adapter,
                top_logprobs=request.top_logprobs if self._top_logprobs else None,
            )
            self._release(slot)
            if not request.answer.done():
                request.answer.set_result(answer)


async def start(config: RunConfig, tokenizer: PreTrainedTokenizerBase, log: Path) -> Engine:
    """Return the engine with the model loaded; it writes nothing to `log`."""
    assert isinstance(config.actors.games_in_flight, int), "planning resolves auto"
    model = load_model(config.model)
    return EmbeddedEngine(
        model,
        stop_token_ids(model, config.model, tokenizer),
        max_requests=config.actors.games_in_flight,
        max_length=min(max_length(config), read_shape(config.model).max_length),
        top_logprobs=config.tracking.top_logprobs,
    )
