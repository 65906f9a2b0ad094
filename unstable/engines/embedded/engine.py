"""The embedded engine: serves any number of adapters of one model on a processor, without vLLM.

Requests are batched continuously: each step is one forward over the next token of every running
request and the uncached part of every new prompt, packed into one row and sorted by adapter. A
prompt's prefix that any slot holds under the same adapter is copied, not computed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from unstable.engines.base import check_request
from unstable.engines.embedded.attention import ATTENTION, Segment, SlotCache, Step
from unstable.engines.embedded.lora import GroupedLora, RowGroup
from unstable.engines.embedded.sampling import restrict, sample
from unstable.engines.embedded.slots import Placement, SlotTable
from unstable.types import Adapter, Completion, FinishReason

_STEP_TOKENS = 1024  # uncached prompt tokens of one step, unless a single prompt has more
_SETTLE_PASSES = 8  # of the event loop between steps, so that answered games can ask again
_PROBE_LENGTHS = (6, 5)  # tokens of the sequences that a new model is tried on
_PROBE_TOLERANCE = 0.1  # of the logits' spread; bfloat16 alone makes 0.01


@dataclass(eq=False, slots=True, kw_only=True)
class _Request:
    prompt_ids: NDArray[np.int64]
    adapter: str | None
    temperature: float
    max_tokens: int
    allowed_token_ids: Sequence[int] | None
    noise: np.random.Generator
    answer: asyncio.Future[Completion]
    slot: int = -1  # until it runs
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


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
    ) -> None:
        config = model.config.get_text_config()
        self._max_length = min(max_length, config.max_position_embeddings)
        self._vocab_size = config.vocab_size
        self._model = model
        self._own_attention = config._attn_implementation
        self._stop_token_ids = frozenset(stop_token_ids)
        self._table = SlotTable(max_requests, self._max_length)
        self._cache = SlotCache(max_requests, self._max_length)
        self._lora = GroupedLora(model)
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}  # by slot
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

    async def add_adapter(self, adapter: Adapter) -> None:
        """Serve an adapter; `ValueError` if its name is taken or it does not fit the base."""
        self._lora.add(adapter)

    async def remove_adapter(self, name: str) -> None:
        """Forget an adapter and all that was computed under it. No request in flight may use it."""
        in_flight = [*self._waiting, *self._running.values()]
        assert all(request.adapter != name for request in in_flight), f"{name} is in use"
        self._lora.remove(name)
        self._table.forget(name)

    async def forget_prefixes(self) -> None:
        """Drop the prefix cache: answers then owe nothing to earlier ones. Only when idle."""
        assert not self._waiting and not self._running, "requests are in flight"
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
        if self._failure is not None:
            raise self._failure
        if adapter is not None and adapter not in self._lora:
            raise ValueError(f"adapter {adapter!r} is not there; add it first")
        check_request(
            prompt_ids,
            temperature=temperature,
            max_tokens=max_tokens,
            allowed_token_ids=allowed_token_ids,
            vocab_size=self._vocab_size,
            max_length=self._max_length,
        )
        request = _Request(
            prompt_ids=np.array(prompt_ids, dtype=np.int64),
            adapter=adapter,
            temperature=temperature,
            max_tokens=max_tokens,
            allowed_token_ids=allowed_token_ids,
            noise=np.random.Generator(np.random.Philox(seed)),
            answer=asyncio.get_running_loop().create_future(),
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
        """Counters since the start (a step's seconds are shared out by tokens), and two gauges."""
        return self._counts | {"running": len(self._running), "waiting": len(self._waiting)}

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

    async def _serve(self) -> None:
        while True:
            await self._work.wait()
            for _ in range(_SETTLE_PASSES):
                await asyncio.sleep(0)
            if self._waiting or self._running:
                self._step()
            else:
                self._work.clear()

    def _fail(self, task: asyncio.Task[None]) -> None:
        """The serving task has ended: nobody who waits for it, or comes later, gets an answer."""
        error = None if task.cancelled() else task.exception()
        self._failure = error or RuntimeError("the engine is closed")
        for request in [*self._waiting, *self._running.values()]:
            if not request.answer.done():
                request.answer.set_exception(self._failure)
        self._waiting.clear()
        self._running.clear()

    def _withdraw(self, request: _Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        elif self._running.get(request.slot) is request:
            self._release(request)

    def _release(self, request: _Request) -> None:
        del self._running[request.slot]
        self._table.release(request.slot)

    @torch.inference_mode()
    def _step(self) -> None:
        """One forward over all that runs or can begin, and one token for each of them."""
        began = time.perf_counter()
        placements = self._admit()
        requests = sorted(self._running.values(), key=lambda r: (r.adapter or "", r.slot))
        slots = [request.slot for request in requests]
        segments = [
            Segment(slot, int(self._table.computed[slot]), int(self._table.length[slot]))
            for slot in slots
        ]
        step = Step(
            segments,
            before=[p.before for p in placements if p.before],
            after=[p.after for p in placements if p.after],
        )
        ids = np.concatenate([self._table.ids[slot, a:b] for slot, a, b in segments])
        logits = self._forward(torch.from_numpy(ids), step, _row_groups(requests, segments))
        self._table.computed[slots] = self._table.length[slots]
        restrict(logits, [request.allowed_token_ids for request in requests])
        token_ids, logprobs = sample(
            logits,
            torch.tensor([request.temperature for request in requests]),
            torch.tensor([request.noise.random() for request in requests]),
        )
        for request, token_id, logprob in zip(requests, token_ids, logprobs, strict=True):
            self._record(request, token_id, logprob)
        seconds = time.perf_counter() - began
        decoded = (len(requests) - len(placements)) / len(ids)
        self._counts["decode_steps"] += 1
        self._counts["sampled_tokens"] += len(requests)
        self._counts["prefill_seconds"] += seconds * (1 - decoded)
        self._counts["decode_seconds"] += seconds * decoded

    def _admit(self) -> list[Placement]:
        """Start waiting requests, in the order of their arrival, while slots and the step allow."""
        placements: list[Placement] = []
        tokens = 0
        while self._waiting and tokens < _STEP_TOKENS:
            placement = self._table.place(self._waiting[0].prompt_ids, self._waiting[0].adapter)
            if placement is None:
                break
            request = self._waiting.popleft()
            request.slot = placement.slot
            self._running[request.slot] = request
            tokens += len(request.prompt_ids) - placement.start
            self._counts["requests"] += 1
            self._counts["prompt_tokens"] += len(request.prompt_ids)
            self._counts["cached_prompt_tokens"] += placement.start
            placements.append(placement)
        # Only now: a later placement may not take for copied what this step has yet to copy.
        for placement in placements:
            self._table.computed[placement.slot] = placement.start
        return placements

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

    def _record(self, request: _Request, token_id: int, logprob: float) -> None:
        """Add a sampled token to an answer, and hand the answer over if that ends it."""
        request.token_ids.append(token_id)
        request.logprobs.append(logprob)
        finish_reason: FinishReason | None = None
        if token_id in self._stop_token_ids:
            finish_reason = "stop"
        elif len(request.token_ids) == request.max_tokens:
            finish_reason = "length"
        if finish_reason is None:
            self._table.append(request.slot, token_id)
            return
        self._release(request)
        if not request.answer.done():
            request.answer.set_result(
                Completion(
                    token_ids=request.token_ids,
                    logprobs=request.logprobs,
                    finish_reason=finish_reason,
                    adapter=request.adapter,
                )
            )

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
        """Last logits [R, V] of short sequences by the model's own attention, and by ours."""
        lengths = _PROBE_LENGTHS[: len(self._table.length)]
        ids = [torch.arange(length) % self._vocab_size for length in lengths]
        own = [self._model(input_ids=row[None], use_cache=False).logits[0, -1] for row in ids]
        self._model.set_attn_implementation(ATTENTION)
        step = Step([Segment(slot, 0, length) for slot, length in enumerate(lengths)])
        ours = self._forward(torch.cat(ids), step, ())
        if self._cache.num_layers == 0:
            raise ValueError("it does not use transformers' attention interface")
        return torch.stack(own).float(), ours.float()

    def _give_back(self) -> None:
        self._lora.detach()
        self._model.set_attn_implementation(self._own_attention)


def _row_groups(requests: Sequence[_Request], segments: Sequence[Segment]) -> list[RowGroup]:
    """The packed rows of each adapter, from requests sorted by adapter; the base has no group."""
    groups = []
    first = 0
    by_adapter = groupby(zip(requests, segments, strict=True), key=lambda pair: pair[0].adapter)
    for adapter, pairs in by_adapter:
        last = first + sum(segment.stop - segment.start for _, segment in pairs)
        if adapter is not None:
            groups.append(RowGroup(first, last, adapter))
        first = last
    return groups
