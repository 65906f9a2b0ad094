"""The embedded engine: serves any number of adapters of one model on a processor, without vLLM.

Requests are batched continuously: each step is one forward over the next token of every running
request and the uncached part of every new prompt, packed into one row and sorted by adapter. A
prompt's prefix that any slot holds under the same adapter is copied, not computed.
"""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from unstable.engines.base import check_request
from unstable.engines.embedded.attention import ATTENTION, SlotCache, Step
from unstable.engines.embedded.lora import GroupedLora, RowGroup
from unstable.engines.embedded.requests import Request, Running
from unstable.engines.embedded.sampling import restrict, sample, score, top_logprobs, uniforms
from unstable.engines.embedded.slots import Ints, Placement, SlotTable
from unstable.engines.scoring import check_scoring, score_all
from unstable.types import Adapter, Completion

_STEP_TOKENS = 1024  # uncached prompt tokens of one step, unless a single prompt has more
_SETTLE_PASSES = 8  # of the event loop between steps, so that answered games can ask again
_PROBE_LENGTHS = (16, 12)  # tokens of the sequences that a new model is tried on
_PROBE_TOLERANCE = 0.5  # of the logits' spread; bfloat16 was seen to make 0.2, a mask's fault 3.7


class EmbeddedEngine:
    """Serves a Hugging Face causal language model, which it owns until `close`.

    `max_requests` run at once and as many prefixes are remembered: about as many as there are games
    in flight, since attention also passes over idle slots between busy ones. Prompt and answer
    together have at most `max_length` tokens. A forward blocks the event loop. The same requests in
    the same order get the same answers to the bit; in other company they differ only by rounding.
    Raises `ValueError` for a model whose attention it cannot compute.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop_token_ids: Collection[int],
        *,
        max_requests: int = 64,
        max_length: int = 4096,
        top_logprobs: int = 0,
    ) -> None:
        config = model.config.get_text_config()
        self._max_length = min(max_length, config.max_position_embeddings)
        self._vocab_size = config.vocab_size
        self._model = model
        self._own_attention = config._attn_implementation
        self._stops_V = np.zeros(self._vocab_size, dtype=bool)
        self._stops_V[
            [token_id for token_id in stop_token_ids if token_id < len(self._stops_V)]
        ] = 1
        self._top_logprobs = top_logprobs
        self._table = SlotTable(max_requests, self._max_length)
        self._cache = SlotCache(max_requests, self._max_length)
        self._lora = GroupedLora(model)
        self._waiting: deque[Request] = deque()
        self._running = Running(max_requests, self._max_length)
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._counts = dict.fromkeys(
            (
                "requests",
                "prompt_tokens",
                "cached_prompt_tokens",
                "sampled_tokens",
                "decode_steps",
                "prefill_seconds",
                "decode_seconds",
            ),
            0.0,
        )
        self._take_over()

    async def load(self, weights: Adapter) -> None:
        """Serve an adapter; `ValueError` if its name is taken or it does not fit the base."""
        self._lora.add(weights)

    async def unload(self, name: str) -> None:
        """Forget an adapter and all that was computed under it. No request in flight may use it."""
        assert all(request.adapter != name for request in self._in_flight), f"{name} is in use"
        self._lora.remove(name)
        self._table.forget(name)

    async def forget_prefixes(self) -> None:
        """Drop the prefix cache: answers then owe nothing to earlier ones. Only when idle."""
        assert not self._in_flight, "requests are in flight"
        self._table.clear()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        adapter: str | None,
        temperature: float,
        max_tokens: int,
        seed: int,
        allowed_token_ids: Sequence[int] | None = None,
    ) -> Completion:
        """Sample an answer, as `Engine.generate` says; cancelling it frees its slot."""
        check_request(
            prompt_ids,
            temperature=temperature,
            max_tokens=max_tokens,
            allowed_token_ids=allowed_token_ids,
            vocab_size=self._vocab_size,
            max_length=self._max_length,
        )
        request = Request(
            prompt_ids=np.frombuffer(array("q", prompt_ids), dtype=np.int64),
            adapter=adapter,
            temperature=temperature,
            max_tokens=max_tokens,
            allowed_token_ids=allowed_token_ids,
            seed=seed,
            answer=asyncio.get_running_loop().create_future(),
        )
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
        """Logprobs of continuations, as `Engine.score` says.

        The prompt is computed once, and each beginning that continuations share.
        """
        check_scoring(
            prompt_ids, continuations, vocab_size=self._vocab_size, max_length=self._max_length
        )

        async def after(beginning: list[int], next_ids: list[int]) -> list[float]:
            request = Request(
                prompt_ids=np.array([*prompt_ids, *beginning], dtype=np.int64),
                adapter=adapter,
                temperature=1.0,
                max_tokens=1,
                allowed_token_ids=None,
                seed=0,
                answer=asyncio.get_running_loop().create_future(),
                next_ids=next_ids,
            )
            logprobs = await self._ask(request)
            assert isinstance(logprobs, list)
            return logprobs

        return await score_all(continuations, after)

    async def _ask(self, request: Request) -> Completion | list[float]:
        """Have a request served; cancelling it frees its slot."""
        if self._failure is not None:
            raise self._failure
        if request.adapter is not None and request.adapter not in self._lora:
            raise ValueError(f"adapter {request.adapter!r} is not there; add it first")
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
        """Counters since the start (a step's seconds are shared out by tokens), and two gauges."""
        gauges = {"running": len(self._running.requests), "waiting": len(self._waiting)}
        return self._counts | gauges

    async def sleep(self) -> None:
        """Nothing: no GPU is used."""

    async def wake(self) -> None:
        """Nothing, as `sleep`."""

    async def close(self) -> None:
        """Fail what is in flight and give the model back as it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._failure = self._failure or RuntimeError("the engine is closed")
        self._give_back()

    @property
    def _in_flight(self) -> list[Request]:
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
        """The serving task has ended: nobody who waits for it, or comes later, gets an answer."""
        error = None if task.cancelled() else task.exception()
        self._failure = error or RuntimeError("the engine is closed")
        for request in self._in_flight:
            if not request.answer.done():
                request.answer.set_exception(self._failure)
        self._waiting.clear()
        self._running.requests.clear()

    def _withdraw(self, request: Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        elif self._running.requests.get(request.slot) is request:
            self._release(request.slot)

    def _release(self, slot: int) -> None:
        del self._running.requests[slot]
        self._table.release(slot)

    @torch.inference_mode()
    def _step(self) -> None:
        """One forward over all that runs or can begin, and one token for each of them."""
        began = time.perf_counter()
        placements = self._admit()
        running, table = self._running, self._table
        slots = np.fromiter(running.requests, np.int64)
        slots = slots[np.lexsort((slots, running.adapters[slots]))]
        step = Step(
            slots,
            table.computed[slots],
            table.length[slots],
            before=[p.before for p in placements if p.before],
            after=[p.after for p in placements if p.after],
        )
        ids = table.ids[step.slots_T.numpy(), step.positions_T.numpy()]
        logits = self._forward(torch.from_numpy(ids), step, self._row_groups(slots, step))
        table.computed[slots] = table.length[slots]
        requests = [running.requests[slot] for slot in slots.tolist()]
        scores = score(logits, [request.next_ids for request in requests])
        restrict(logits, [request.allowed_token_ids for request in requests])
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
        self._record(slots, np.array(token_ids), logprobs, scores)
        seconds = time.perf_counter() - began
        decoded = (len(slots) - len(placements)) / len(ids)
        self._counts["decode_steps"] += 1
        self._counts["sampled_tokens"] += len(slots)
        self._counts["prefill_seconds"] += seconds * (1 - decoded)
        self._counts["decode_seconds"] += seconds * decoded

    def _admit(self) -> list[Placement]:
        """Start waiting requests, in the order of their arrival, while slots and the step allow."""
        placements: list[Placement] = []
        tokens = cached = 0
        while self._waiting and tokens < _STEP_TOKENS:
            placement = self._table.place(self._waiting[0].prompt_ids, self._waiting[0].adapter)
            if placement is None:
                break
            request = self._waiting.popleft()
            request.slot = placement.slot
            self._running.add(request, self._lora.number(request.adapter))
            tokens += len(request.prompt_ids) - placement.start
            cached += placement.start
            placements.append(placement)
        self._counts["requests"] += len(placements)
        self._counts["prompt_tokens"] += tokens + cached
        self._counts["cached_prompt_tokens"] += cached
        # Only now: a later placement may not take for copied what this step has yet to copy.
        for placement in placements:
            self._table.computed[placement.slot] = placement.start
        return placements

    def _row_groups(self, slots: Ints, step: Step) -> list[RowGroup]:
        """The packed rows of each adapter, of slots sorted by adapter; the base has no group."""
        numbers = self._running.adapters[slots]
        stops = step.last.numpy() + 1
        edges = np.flatnonzero(np.diff(numbers, append=-1)).tolist()
        groups, first = [], 0
        for edge in edges:
            last = int(stops[edge])
            adapter = self._running.requests[int(slots[edge])].adapter
            if adapter is not None:
                groups.append(RowGroup(first, last, adapter))
            first = last
        return groups

    def _forward(self, ids_T: Tensor, step: Step, groups: Sequence[RowGroup]) -> Tensor:
        """Logits [R, V] after the last token of each of the step's R segments."""
        self._cache.reserve(step.length)
        self._lora.groups = groups
        output = self._model(
            input_ids=ids_T[None],
            position_ids=step.positions_T[None],
            use_cache=False,
            logits_to_keep=step.last,
            slot_step=step,
            slot_cache=self._cache,
        )
        return output.logits[0]

    def _record(
        self,
        slots: Ints,
        token_ids: Ints,
        logprobs: Sequence[float],
        scores: Mapping[int, list[float]],
    ) -> None:
        """Add sampled tokens to answers, and hand those answers over that they end.

        Those of `scores`, by row, are the scores.
        """
        running, table = self._running, self._table
        running.logprobs[slots, table.length[slots]] = logprobs
        table.append(slots, token_ids)
        stopped = self._stops_V[token_ids]
        ended = stopped | (table.length[slots] == running.ends[slots])
        for row in np.flatnonzero(ended).tolist():
            slot, is_stop = int(slots[row]), bool(stopped[row])
            request = running.requests[slot]
            places = slice(len(request.prompt_ids), int(table.length[slot]))
            answer = scores.get(row) or Completion(
                token_ids=table.ids[slot, places].tolist(),
                logprobs=running.logprobs[slot, places].tolist(),
                finish_reason="stop" if is_stop else "length",
                adapter=request.adapter,
                top_logprobs=request.top_logprobs if self._top_logprobs else None,
            )
            self._release(slot)
            if not request.answer.done():
                request.answer.set_result(answer)

    def _take_over(self) -> None:
        """Let the model attend to slots, and prove that two packed sequences come out the same."""
        name = type(self._model).__name__
        try:
            expected, actual = self._probe()
        except (TypeError, ValueError) as error:
            self._give_back()
            raise ValueError(f"the embedded engine cannot serve {name}: {error}") from None
        if not (actual - expected).abs().mean() <= _PROBE_TOLERANCE * expected.std():
            self._give_back()
            raise ValueError(
                f"the embedded engine cannot serve {name}: its attention over a packed row differs "
                "from its own; use a model with plain causal attention, or another engine"
            )

    @torch.inference_mode()
    def _probe(self) -> tuple[Tensor, Tensor]:
        """Last logits [R, V] of short sequences by the model's own attention, and by ours.

        Its own is the plain one, which rounds as ours does.
        """
        lengths = [
            min(each, self._max_length) for each in _PROBE_LENGTHS[: len(self._table.length)]
        ]
        ids = [torch.arange(length) % self._vocab_size for length in lengths]
        self._model.set_attn_implementation("eager")
        own = [self._model(input_ids=row[None], use_cache=False).logits[0, -1] for row in ids]
        self._model.set_attn_implementation(ATTENTION)
        stops = np.array(lengths)
        step = Step(np.arange(len(lengths)), np.zeros_like(stops), stops)
        ours = self._forward(torch.cat(ids), step, ())
        if self._cache.num_layers == 0:
            raise ValueError("it does not use transformers' attention interface")
        return torch.stack(own).float(), ours.float()

    def _give_back(self) -> None:
        self._lora.detach()
        self._model.set_attn_implementation(self._own_attention)
