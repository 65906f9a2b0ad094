"""Cost of play without the model: an instant engine and 384 TicTacToe games in flight.

Run: python -m bench.orchestration [--games 2000] [--in-flight 384] [--tokenizer embedded|none]
"""

import asyncio
import random
import re
import resource
from collections.abc import Callable, Iterable, Sequence
from time import process_time
from typing import Any

from bench import parser
from unstable.collectors.collector import Collector
from unstable.config import RunConfig, parse
from unstable.engines.base import SamplingRequest
from unstable.runtime.inside import collect_rarely
from unstable.types import Adapter, Completion, GameResult, GameSpec, PlayerId, SeatSpec

POLICY = PlayerId.policy(0)
Choose = Callable[[Sequence[int], int], list[int]]
"""A function (prompt ids, seed) -> tokens of an answer."""


class ScriptedEngine:
    """An engine without a model, which answers by `choose`; `seconds` is the time of choosing."""

    def __init__(self, choose: Choose) -> None:
        self.seconds = 0.0
        self._choose = choose

    async def generate(self, request: SamplingRequest) -> Completion:
        await asyncio.sleep(0)
        began = process_time()
        ids = self._choose(request.prompt_ids, request.seed)
        self.seconds += process_time() - began
        return Completion(
            token_ids=ids,
            logprobs=[-1.0] * len(ids),
            finish_reason="stop",
            adapter=request.adapter,
        )

    async def score(self, *_: Any, **__: Any) -> list[list[float]]:
        raise NotImplementedError

    async def load(self, weights: Adapter) -> None: ...

    async def unload(self, name: str) -> None: ...

    async def forget_prefixes(self) -> None: ...

    def stats(self) -> dict[str, float]:
        return {}

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def close(self) -> None: ...


def free_cell(tokenizer: Any) -> Choose:
    """Return a function that chooses a random empty cell of TicTacToe's compact board.

    The board is the last nine characters that can be one.
    """
    answers = {str(cell): tokenizer.encode(str(cell)) for cell in range(9)}

    def choose(prompt_ids: Sequence[int], seed: int) -> list[int]:
        board = re.findall(r"[XO0-8]{9}", tokenizer.decode(prompt_ids[-60:]))[-1]
        return answers[random.Random(seed).choice(re.findall(r"\d", board))]

    return choose


class TextTokenizer:
    """A substitute for a tokenizer at almost no cost: one id per character."""

    added_tokens_decoder: dict[int, Any] = {}

    def apply_chat_template(self, messages: list, **_: Any) -> str:
        return "".join(message["content"] for message in messages)

    def encode(self, text: str, **_: Any) -> list[int]:
        return [*map(ord, text)]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, ids))


def self_play(numbers: Iterable[int], player: PlayerId = POLICY) -> list[GameSpec]:
    """Return games of TicTacToe in which a player meets itself."""
    seat = SeatSpec(player=player, temperature=1.0, group_id=0)
    return [
        GameSpec(game_id=i, purpose="train", env="TicTacToe-v0", seed=i, seats=(seat, seat))
        for i in numbers
    ]


async def measure(config: RunConfig, tokenizer: Any, games: int) -> tuple[float, int]:
    """Return CPU seconds, without the engine's, and turns, of `games` games in self-play."""
    engine = ScriptedEngine(free_cell(tokenizer))
    collector = Collector(config, engine, tokenizer)
    began = process_time()
    turns = 0
    async for result in collector.play(self_play(range(games))):
        assert isinstance(result, GameResult), result
        assert result.forfeit is None, result.reason
        turns += len(result.turns)
    return process_time() - began - engine.seconds, turns


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, games=2000, in_flight=384)
    options.add_argument("--tokenizer", choices=["embedded", "none"], default="embedded")
    arguments = options.parse_args(argv)
    config = parse({"actors": {"games_in_flight": arguments.in_flight}})
    tokenizer: Any = TextTokenizer()
    if arguments.tokenizer == "embedded":
        from unstable.models.base import load_tokenizer

        tokenizer = load_tokenizer(config.model)
    idle = peak_memory_mb()
    asyncio.run(measure(config, tokenizer, arguments.in_flight))
    warm = peak_memory_mb()
    collect_rarely()  # as actors do
    seconds, turns = asyncio.run(measure(config, tokenizer, arguments.games))
    print(f"tokenizer {arguments.tokenizer}: {turns} turns in {seconds:.1f} s")
    print(f"{turns / seconds:.0f} turns/s, {1e6 * seconds / turns:.0f} us per turn")
    print(
        f"memory: {idle:.0f} MB before the first game (libraries), {warm - idle:+.0f} MB for "
        f"{arguments.in_flight} games in flight, {peak_memory_mb() - warm:+.0f} MB after "
        f"{arguments.games} more"
    )


def peak_memory_mb() -> float:
    """Return the process's peak resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
