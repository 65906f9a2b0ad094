"""Games through the collector, compared with the bare engine and with a synchronous loop.

    python -m bench.rollout [--games 8] [--in_flight 8] [--model NAME] [--engine vllm|embedded]
    python -m bench.rollout --games 768 --in_flight 384 --model Qwen/Qwen3-1.7B    # on a GPU

Three ways alternate, round after round; prints medians and ratios.

- collector: real games, played by `Collector` on the engine.
- raw: the same requests on the same engine, equally concurrent, without games. The difference is
  the collector's cost.
- stepped (vLLM alone): the same games on vLLM's synchronous engine as earlier toolkits used it: a
  loop on the games' own event loop that steps the engine and then sleeps 20 ms, with every token
  streamed and decoded.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench import parser
from unstable.collectors.collector import Collector
from unstable.config import RunConfig, parse
from unstable.engines.base import Engine, SamplingRequest
from unstable.engines.kinds import NEEDS, make_engine
from unstable.engines.probe import probe_adapters
from unstable.models.adapters import padded_rank, write_adapter
from unstable.models.base import model_path
from unstable.models.shape import read_shape
from unstable.planning.machine import this_machine
from unstable.planning.plan import plan
from unstable.types import Adapter, Completion, GameResult, GameSpec, PlayerId, SeatSpec

STEP_SLEEP_S = 0.02
Rates = dict[str, list[float]]
"""By way: games and sampled tokens per second."""


class Recorder:
    """An engine that records each game's requests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forget_prefixes = engine.forget_prefixes
        self.load = engine.load
        self.score = engine.score
        self.unload = engine.unload
        self.stats = engine.stats
        self.sleep = engine.sleep
        self.wake = engine.wake
        self.close = engine.close
        self.chains: dict[asyncio.Task[Any] | None, list[SamplingRequest]] = {}
        self.answers: list[tuple[list[int], Completion]] = []  # prompts and completions
        self.tokens = 0

    async def generate(self, request: SamplingRequest) -> Completion:
        answer = await self._engine.generate(request)
        chain = self.chains.setdefault(asyncio.current_task(), [])
        chain.append(replace(request, max_tokens=len(answer.token_ids)))
        self.answers.append((list(request.prompt_ids), answer))
        self.tokens += len(answer.token_ids)
        return answer


class Stepped:
    """vLLM's synchronous engine, stepped by a task of the games' event loop."""

    def __init__(self, config: RunConfig) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.llm_engine import LLMEngine

        in_flight = config.actors.games_in_flight
        assert isinstance(in_flight, int)
        if current_platform.is_cpu():
            options: dict[str, Any] = {"block_size": 32}  # as in our engine
        else:
            options = {"gpu_memory_utilization": config.actors.gpu_memory}
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=model_path(config.model),
                dtype=config.model.dtype,
                enable_lora=True,
                max_loras=2,
                max_lora_rank=padded_rank(config.model.lora.rank),
                max_model_len=config.sampling.max_prompt_tokens + config.sampling.max_tokens,
                max_num_seqs=in_flight,
                enforce_eager=config.actors.enforce_eager,
                enable_prefix_caching=True,
                disable_log_stats=True,
                **options,
            )
        )
        self._folder = tempfile.TemporaryDirectory()
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._asked = 0
        self._task: asyncio.Task[None] | None = None

    async def score(self, *_: Any, **__: Any) -> list[list[float]]:
        raise NotImplementedError

    async def load(self, weights: Adapter) -> None:
        write_adapter(weights, Path(self._folder.name))

    async def unload(self, name: str) -> None: ...

    async def forget_prefixes(self) -> None:
        self._engine.reset_prefix_cache()

    def stats(self) -> dict[str, float]:
        return {}

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def close(self) -> None:
        self._engine.engine_core.shutdown()  # else the interpreter waits for its process at exit
        self._folder.cleanup()

    async def generate(self, request: SamplingRequest) -> Completion:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.lora.request import LoRARequest

        allowed = request.allowed_token_ids
        self._asked += 1
        answer = asyncio.get_running_loop().create_future()
        self._answers[str(self._asked)] = answer
        self._engine.add_request(
            str(self._asked),
            tokens_input(list(request.prompt_ids)),
            SamplingParams(
                temperature=request.temperature,
                max_tokens=request.max_tokens,
                logprobs=0,
                allowed_token_ids=None if allowed is None else list(allowed),
            ),
            lora_request=LoRARequest(
                lora_name="policy", lora_int_id=1, lora_path=self._folder.name
            ),
        )
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._step())
        output = await answer
        return Completion(
            token_ids=list(output.token_ids),
            logprobs=[
                entry[token].logprob
                for token, entry in zip(output.token_ids, output.logprobs, strict=True)
            ],
            finish_reason=output.finish_reason,
            adapter=request.adapter,
        )

    async def _step(self) -> None:
        while self._answers:
            for output in self._engine.step():
                if output.finished:
                    self._answers.pop(output.request_id).set_result(output.outputs[0])
            await asyncio.sleep(STEP_SLEEP_S)


def game_specs(games: int, first: int) -> list[GameSpec]:
    """Return self-play games that no earlier round has played."""
    seat = SeatSpec(player=PlayerId.policy(0), temperature=1.0, group_id=0)
    return [
        GameSpec(game_id=i, purpose="train", env="game", seed=i, seats=(seat, seat))
        for i in range(first, first + games)
    ]


async def play(
    config: RunConfig, recorder: Recorder, tokenizer: Any, specs: Sequence[GameSpec]
) -> int:
    """Play the games; returns the number of sampled tokens."""
    async for result in Collector(config, recorder, tokenizer).play(specs):
        assert isinstance(result, GameResult), result
    return recorder.tokens


async def replay(engine: Engine, played: Recorder) -> int:
    """Repeat the recorded requests, sequentially per game; returns the number of sampled tokens."""
    await engine.forget_prefixes()

    async def ask(chain: Sequence[SamplingRequest]) -> int:
        answers = [await engine.generate(request) for request in chain]
        return sum(len(answer.token_ids) for answer in answers)

    return sum(await asyncio.gather(*map(ask, played.chains.values())))


async def timed(work: Awaitable[int]) -> tuple[float, int]:
    """Return the seconds that the work took, and the tokens that it sampled."""
    began = time.perf_counter()
    tokens = await work
    return time.perf_counter() - began, tokens


async def measure(config: RunConfig, arguments: argparse.Namespace, log: Path) -> Rates:
    engine, tokenizer = await make_engine(config, log)
    others: dict[str, Engine] = {"stepped": Stepped(config)} if arguments.engine == "vllm" else {}
    weights = probe_adapters(read_shape(config.model), config.model.lora)[0]
    policy = Adapter(name=PlayerId.policy(0).name, weights=weights.weights, config=weights.config)
    for each in (engine, *others.values()):
        await each.load(policy)
    rates: dict[str, list[tuple[float, float]]] = {}
    for number in range(arguments.rounds + 1):
        specs = game_specs(arguments.games, number * arguments.games)
        played = Recorder(engine)
        seconds, tokens = await timed(play(config, played, tokenizer, specs))
        once = {"collector": (seconds, tokens), "raw": await timed(replay(engine, played))}
        for name, each in others.items():
            once[name] = await timed(play(config, Recorder(each), tokenizer, specs))
        if number > 0:  # the first round is the warm-up
            for name, (seconds, tokens) in once.items():
                rates.setdefault(name, []).append((arguments.games / seconds, tokens / seconds))
    for each in (engine, *others.values()):
        await each.close()
    return report(rates)


def report(rates: dict[str, list[tuple[float, float]]]) -> Rates:
    """Print the medians, and return them."""
    medians = {
        name: [statistics.median(values) for values in zip(*found, strict=True)]
        for name, found in rates.items()
    }
    games, tokens = medians["collector"]
    for name, (games_per_s, tokens_per_s) in medians.items():
        print(
            f"{name:<10}{games_per_s:8.2f} games/s{tokens_per_s:9.0f} tokens/s; "
            f"the collector reaches {tokens / tokens_per_s:.2f} x its rate"
        )
    return medians


def main(argv: Sequence[str] | None = None) -> Rates:
    """Measure the ways, print them, and return their speeds."""
    options = parser(
        __doc__,
        games=(8, "games per round"),
        in_flight=(8, "games in flight"),
        rounds=(3, "measured rounds"),
        max_tokens=(16, "longest answer"),
        env="TicTacToe-v0",
        model="smollm2-135m",
        gpu_memory=(0.4, "memory share of each engine"),
    )
    options.add_argument("--engine", choices=["vllm", "embedded"], default="vllm")
    arguments = options.parse_args(argv)
    config = bench_config(
        arguments.model,
        arguments.engine,
        in_flight=arguments.in_flight,
        max_tokens=arguments.max_tokens,
        env=arguments.env,
        actors={"max_loras": 2, "max_cpu_loras": 2, "gpu_memory": arguments.gpu_memory},
    )
    plan(config, [this_machine()], NEEDS, learner=False)  # rejects what this machine cannot run
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(measure(config, arguments, Path(folder) / "engine.log"))


def bench_config(
    model: str,
    engine: str,
    *,
    in_flight: int,
    max_tokens: int,
    env: str = "TicTacToe-v0",
    actors: Mapping[str, Any],
) -> RunConfig:
    """Return the config of a run that plays `env`, where invalid moves do not end games.

    A weak model makes many, and games would end after one turn.
    """
    return parse(
        {
            "model": {"name": model, "dtype": "bfloat16"},
            "games": [
                {"env": env, "name": "game", "events": "all", "invalid_moves": {"allowed": 4}}
            ],
            "sampling": {"max_tokens": max_tokens, "max_prompt_tokens": 1024},
            "actors": {"engine": engine, "games_in_flight": in_flight, **actors},
        }
    )


if __name__ == "__main__":
    main()
