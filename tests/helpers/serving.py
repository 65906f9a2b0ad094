"""An endpoint on this event loop: a small model with versions, or an engine that says what it is
told to."""

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from openai import AsyncOpenAI

from tests.helpers.models import random_adapter
from unstable.config import RunConfig, dump, parse
from unstable.engines.base import Engine, SamplingRequest
from unstable.engines.embedded.engine import EmbeddedEngine, start
from unstable.models.adapters import write_adapter
from unstable.models.base import load_model, load_tokenizer
from unstable.records.folder import RunFolder
from unstable.serving.app import application
from unstable.serving.models import ForToken, ModelsSeat
from unstable.serving.server import Server
from unstable.types import Adapter, Completion

HI: list[Any] = [{"role": "user", "content": "X moves. What now?"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
"""Any JSON value."""
LENGTH = 256
"""Tokens of the longest request."""


def served_config(**changes: Any) -> RunConfig:
    """Build a config of the tiny model, with four answers at once."""
    return parse(
        {
            "model": {"name": "tiny", "dtype": "float32", "adapter": {"rank": 4}},
            "actors": {"games_in_flight": 4},
            "sampling": {"max_prompt_tokens": LENGTH - 64, "max_tokens": 64},
            "tracking": {"top_logprobs": 3},
            **changes,
        }
    )


@dataclass
class Endpoint:
    """A served engine with its config, tokenizer and server."""

    config: RunConfig
    engine: Engine
    seat: ModelsSeat
    tokenizer: Any
    server: Server

    @property
    def url(self) -> str:
        return f"{self.server.url}/v1"

    @contextlib.asynccontextmanager
    async def client(self, key: str = "any") -> AsyncIterator[AsyncOpenAI]:
        """OpenAI's own, which asks once."""
        async with AsyncOpenAI(base_url=self.url, api_key=key, max_retries=0) as client:
            yield client


@contextlib.asynccontextmanager
async def endpoint(
    config: RunConfig | None = None,
    engine: Engine | None = None,
    token: str | None = None,
    versions: Sequence[int] = (0,),
    adapters: Sequence[Adapter] = (),
    tokenizer: Any = None,
) -> AsyncIterator[Endpoint]:
    """Serves adapters, by default random ones as versions, and the base, or what an engine says."""
    config = config or served_config()
    tokenizer = tokenizer or load_tokenizer(config.model)
    names = [adapter.name for adapter in adapters] or [f"main@{number}" for number in versions]
    if engine is None:
        engine = await embedded(config, versions, adapters)
    length = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    named: dict[str, str | None] = {**{name: name for name in names}, "base": None}
    seat = ModelsSeat.of(config, engine, tokenizer, named, length)
    server = await Server(application(ForToken(seat, token)), "127.0.0.1", 0).start()
    try:
        yield Endpoint(config, engine, seat, tokenizer, server)
    finally:
        await server.close()
        await engine.close()


async def embedded(
    config: RunConfig, versions: Sequence[int] = (), adapters: Sequence[Adapter] = ()
) -> EmbeddedEngine:
    """The config's model with these adapters, or a random one for each version."""
    model = load_model(config.model)
    engine = await start(config, load_tokenizer(config.model), Path())
    assert isinstance(engine, EmbeddedEngine)
    drawn = [random_adapter(model, f"main@{number}", seed=number) for number in versions]
    for adapter in adapters or drawn:
        await engine.load(adapter)
    return engine


class Says:
    """An engine that answers with given ids, a token a tick, and tells what was given up."""

    def __init__(self, ids: Callable[[int], Sequence[int]], tick_s: float = 0.0) -> None:
        """`ids` are an answer's, by its seed."""
        self._ids, self._tick_s = ids, tick_s
        self.running = self.given_up = 0
        self.error: Exception | None = None

    async def generate(self, request: SamplingRequest) -> Completion:
        given = list(self._ids(request.seed))
        ids = given[: request.max_tokens]
        self.running += 1
        try:
            for place, token in enumerate(ids):
                await asyncio.sleep(self._tick_s)
                if self.error is not None:
                    raise self.error
                if request.told is not None:
                    request.told([token], [-0.5 - place], [[(token, -0.5 - place), (0, -9.0)]])
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.running -= 1
        return Completion(
            token_ids=ids,
            logprobs=[-0.5 - place for place in range(len(ids))],
            finish_reason="stop" if len(ids) == len(given) else "length",
            adapter=request.adapter,
            top_logprobs=[[(token, -0.5 - place), (0, -9.0)] for place, token in enumerate(ids)],
        )

    async def load(self, weights: Any) -> None: ...

    async def unload(self, name: str) -> None: ...

    async def forget_prefixes(self) -> None: ...

    async def score(self, *_: Any, **__: Any) -> list[list[float]]:
        raise NotImplementedError

    def stats(self) -> dict[str, float]:
        return {}

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def close(self) -> None: ...


def make_run(root: Path, config: RunConfig, versions: Sequence[int]) -> RunFolder:
    """Write the folder of a run that made these versions: its config and random adapters."""
    folder, model = RunFolder(root), load_model(config.model)
    for number in versions:
        folder.checkpoint(number).mkdir(parents=True)
        adapter = random_adapter(model, f"main@{number}", seed=number)
        write_adapter(adapter, folder.checkpoint(number))
    folder.config.write_text(dump(config), encoding="utf-8")
    return folder


def url_of(process: "subprocess.Popen[str]") -> str:
    """Wait until a started command serves, and return its URL."""
    assert process.stdout is not None
    for line in process.stdout:
        if (found := re.match(r"serving .* at (http\S+)", line)) is not None:
            return found[1]
    raise AssertionError(f"it ended with {process.wait()}")
