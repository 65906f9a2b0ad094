"""The vLLM engine: serves a model with any number of adapters on a GPU, or on vLLM's CPU build.

Only this file, `core.py`, `lora_metadata.py`, `loras.py` and `whole.py` import vLLM, versions 0.24
to 0.32. The engine core is a child process that ends with this one. The engine handles token ids
alone, never text.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from unstable.config import RunConfig
from unstable.engines.base import (
    Engine,
    EngineDiedError,
    SamplingRequest,
    Told,
    check_request,
    max_length,
)
from unstable.engines.scoring import check_scoring, score_all
from unstable.engines.vllm.core import VLLMSettings, start_core
from unstable.engines.vllm.loras import Loras
from unstable.engines.vllm.versions import ScratchFolder, Weights
from unstable.engines.vllm.whole import WholeVersionFiles
from unstable.models.adapters import lora_ranks
from unstable.models.base import model_path, named_stop_token_ids, resolve_dtype
from unstable.models.shape import read_shape
from unstable.types import Adapter, Completion, FinishReason, TopLogprobs

_FAVOUR = 100.0  # added to the logits of allowed tokens, instead of a mask
_PAUSE_S = 0.01
_ASKED = 128  # maximum number of candidate tokens that vLLM scores per request
_COLDEST = 0.01  # vLLM replaces lower temperatures except 0
_HOTTEST = 2.0  # vLLM rejects higher temperatures, but not with a ValueError
_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class VLLMEngine:
    """An engine that serves a model with vLLM's `AsyncLLM` until `close`.

    `seed` decides a completion with vLLM's newer model runner (all models since 0.32, most before)
    and on a CPU. The older runner on a GPU would launch one kernel per request and token for it;
    there the engine ignores `seed`, and answers do not repeat. vLLM's own output goes to the file
    `log`. Raises `RuntimeError` if vLLM does not start.
    """

    def __init__(self, settings: VLLMSettings, stop_token_ids: Collection[int], log: Path) -> None:
        self._settings = settings
        self._stop_token_ids = sorted(stop_token_ids)
        self._folder = ScratchFolder("unstable-adapters-")
        self._llm = start_core(settings, log)
        from vllm import __version_tuple__  # only after `start_core` has set vLLM's environment

        config = self._llm.vllm_config
        made = (self._llm, settings, self._folder.path)
        self._versions: Loras | WholeVersionFiles = (
            WholeVersionFiles(*made) if settings.max_rank is None else Loras(*made)
        )
        self._vocab_size = self._llm.model_config.get_vocab_size()
        self._is_on_cpu = config.device_config.device_type == "cpu"
        self._is_seeded = self._is_on_cpu or config.use_v2_model_runner
        self._loses_allowed = __version_tuple__ < (0, 25)
        self._request_ids = map(str, count())
        self._in_flight: set[str] = set()
        names = ("requests", "prompt_tokens", "cached_prompt_tokens", "sampled_tokens")
        self._counts = dict.fromkeys(names, 0.0)

    async def start(self) -> None:
        """Prepare the base model, before the first request."""
        with _deaths_named():
            await self._versions.start()

    async def load(self, weights: Adapter) -> None:
        with _deaths_named():
            await self._versions.load(weights)

    async def unload(self, name: str) -> None:
        """Remove a version. No request in flight may use it.

        Its entries in the prefix cache become unreachable: their key is a name that is never
        reused.
        """
        with _deaths_named():
            await self._versions.unload(name)

    async def forget_prefixes(self) -> None:
        with _deaths_named():
            while not await self._llm.reset_prefix_cache():  # cancelled requests have not ended yet
                await asyncio.sleep(_PAUSE_S)

    async def generate(self, request: SamplingRequest) -> Completion:
        """Sample a completion, see `Engine.generate`; cancellation aborts it in vLLM too."""
        check_request(request, vocab_size=self._vocab_size, max_length=self._settings.max_length)
        temperature = request.temperature
        if 0 < temperature < _COLDEST:
            raise ValueError(f"temperature = {temperature}: must be 0 (greedy) or >= {_COLDEST}")
        if temperature > _HOTTEST:
            raise ValueError(f"temperature = {temperature}: must be <= {_HOTTEST:g} with vLLM")
        sampling = self._sampling(request)
        with _deaths_named():
            async with self._versions.asked(request.adapter) as weights:
                output = await self._ask(request.prompt_ids, sampling, weights, request.told)
        (answer,) = output.outputs
        if answer.finish_reason not in _FINISH_REASONS:
            raise RuntimeError(f"vLLM aborted a request: finish reason {answer.finish_reason}")
        token_ids, found = list(answer.token_ids), answer.logprobs
        assert len(token_ids) == len(found.start_indices)
        self._counts["requests"] += 1
        self._counts["prompt_tokens"] += len(request.prompt_ids)
        self._counts["cached_prompt_tokens"] += output.num_cached_tokens or 0
        self._counts["sampled_tokens"] += len(token_ids)
        return Completion(
            token_ids=token_ids,
            logprobs=_sampled(found),
            finish_reason=_FINISH_REASONS[answer.finish_reason],
            adapter=request.adapter,
            top_logprobs=_likeliest(found) if self._settings.top_logprobs else None,
        )

    async def score(
        self,
        prompt_ids: Sequence[int],
        continuations: Sequence[Sequence[int]],
        *,
        adapter: str | None,
    ) -> list[list[float]]:
        """Return logprobs of continuations, see `Engine.score`.

        Shared prompts and beginnings come from the prefix cache, except for a last partial block.
        """
        check_scoring(
            prompt_ids,
            continuations,
            vocab_size=self._vocab_size,
            max_length=self._settings.max_length,
        )

        async def after(beginning: list[int], next_ids: list[int]) -> list[float]:
            logprobs: list[float] = []
            for first in range(0, len(next_ids), _ASKED):
                asked = next_ids[first : first + _ASKED]
                output = await self._ask([*prompt_ids, *beginning], self._scoring(asked), weights)
                (found,) = output.outputs[0].logprobs  # for the one sampled token
                logprobs += [float(found[token_id].logprob) for token_id in asked]
            return logprobs

        with _deaths_named():
            async with self._versions.asked(adapter) as weights:
                return await score_all(continuations, after)

    @staticmethod
    def _scoring(next_ids: list[int]) -> Any:
        """Return vLLM's parameters for the logprobs of candidates for the next token."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=1.0,
            max_tokens=1,
            logprob_token_ids=next_ids,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _sampling(self, request: SamplingRequest) -> Any:
        """Return vLLM's parameters for sampling from all tokens or the allowed ones."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        # With a listener each output contains all tokens so far.
        told_of = request.told is not None
        return SamplingParams(
            temperature=request.temperature,
            top_p=1.0,
            top_k=0,
            seed=request.seed if self._is_seeded else None,
            max_tokens=request.max_tokens,
            stop_token_ids=self._stop_token_ids,
            ignore_eos=True,  # stop_token_ids lists all of them
            logprobs=self._settings.top_logprobs,  # plus the sampled token
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE if told_of else RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
            **self._restriction(request.allowed_token_ids),
        )

    def _restriction(self, allowed: Sequence[int] | None) -> dict[str, Any]:
        """Return vLLM's parameters for sampling among some tokens, none if all are allowed.

        0.24's newer model runner reads the allowed tokens' logits while it overwrites the others',
        and so loses some of them (vLLM's pull request 46245, in 0.25).
        """
        if allowed is None:
            return {}
        if self._loses_allowed:
            return {"logit_bias": dict.fromkeys(allowed, _FAVOUR)}
        return {"allowed_token_ids": list(allowed)}

    async def _ask(
        self, prompt_ids: Sequence[int], sampling: Any, weights: Weights, told: Told | None = None
    ) -> Any:
        """Return vLLM's last output for a request, which is complete."""
        from vllm.inputs import tokens_input

        request_id = next(self._request_ids)
        self._in_flight.add(request_id)
        try:
            outputs: AsyncIterator[Any] = self._llm.generate(
                tokens_input(list(prompt_ids), cache_salt=weights.salt),
                sampling,
                request_id=request_id,
                lora_request=weights.lora,
            )
            heard, output = 0, None
            async for output in outputs:
                if told is not None and len(output.outputs[0].token_ids) > heard:
                    so_far = output.outputs[0]
                    found, has_more = so_far.logprobs, self._settings.top_logprobs
                    told(
                        list(so_far.token_ids[heard:]),
                        _sampled(found, heard),
                        _likeliest(found, heard) if has_more else None,
                    )
                    heard = len(so_far.token_ids)
        finally:
            self._in_flight.remove(request_id)
        assert output is not None, "vLLM returned no output"
        return output

    def stats(self) -> dict[str, float]:
        """Return counters of answered requests since the start, and two gauges by vLLM's limit."""
        return self._counts | {
            "adapter_requests": self._versions.requests,
            "adapter_hits": self._versions.hits,
            "running": min(len(self._in_flight), self._settings.max_requests),
            "waiting": max(0, len(self._in_flight) - self._settings.max_requests),
        }

    async def sleep(self) -> None:
        """Release the GPU's memory: weights move to CPU memory, the prefix cache is lost."""
        assert self._settings.sleeps and not self._in_flight
        with _deaths_named():
            await self._llm.sleep(level=1)

    async def wake(self) -> None:
        """Allocate the memory again and resume serving."""
        with _deaths_named():
            await self._llm.wake_up()

    async def close(self) -> None:
        """Abort requests in flight and end vLLM's processes."""
        if not self._llm.errored:
            await self._llm.abort(self._in_flight.copy())
        self._llm.shutdown()
        del self._llm  # otherwise it shuts down again when Python exits, and fails
        self._folder.close()


def _sampled(found: Any, first: int = 0) -> list[float]:
    """Return the sampled tokens' logprobs from place `first` on: vLLM's first at each place."""
    return [float(found.logprobs[start]) for start in found.start_indices[first:]]


def _likeliest(found: Any, first: int = 0) -> TopLogprobs:
    """Return the likeliest tokens at each place from `first` on, out of vLLM's flat logprobs."""
    return [
        [
            (int(token), float(logprob))
            for token, logprob in zip(
                found.token_ids[start + 1 : end], found.logprobs[start + 1 : end], strict=True
            )
            if logprob > -math.inf
        ]
        for start, end in zip(found.start_indices[first:], found.end_indices[first:], strict=True)
    ]


@contextlib.contextmanager
def _deaths_named() -> Iterator[None]:
    """Convert vLLM's error for a dead engine core to `EngineDiedError`."""
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise EngineDiedError("vLLM's engine core has died") from error


async def start(config: RunConfig, tokenizer: PreTrainedTokenizerBase, log: Path) -> Engine:
    """Return the engine with the model loaded; vLLM's output goes to the file `log`."""
    actors = config.actors
    assert isinstance(actors.games_in_flight, int), "planning resolves auto"
    assert isinstance(actors.max_loras, int) and isinstance(actors.max_cpu_loras, int)
    shape = read_shape(config.model)
    settings = VLLMSettings(
        model=model_path(config.model),
        linears={linear.name: (linear.inputs, linear.outputs) for linear in shape.linears},
        dtype=resolve_dtype(config.model.dtype),
        max_requests=actors.games_in_flight,
        max_length=min(max_length(config), shape.max_length),
        max_rank=None if config.model.trains_all else max(lora_ranks(config).values()),
        max_loras=actors.max_loras,
        max_cpu_loras=actors.max_cpu_loras,
        tensor_parallel=actors.tensor_parallel,
        gpu_memory=None if actors.gpu_memory == "auto" else actors.gpu_memory,
        enforce_eager=actors.enforce_eager,
        top_logprobs=config.tracking.top_logprobs,
        sleeps=actors.share_gpu == "sleep",
        quantize=config.model.quantize,
    )
    engine = VLLMEngine(settings, named_stop_token_ids(config.model, tokenizer), log)
    await engine.start()
    return engine
