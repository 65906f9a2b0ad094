"""64 clients at once of one served run, for a while: right answers, none lost, flat memory."""

import asyncio
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.helpers.cli import PATIENCE_S, background, no_developers_lines
from tests.helpers.serving import make_run, served_config, url_of

CLIENTS, SECONDS, WARM_S = 64, 20, 10
VERSIONS = ("main@0", "main@3", "base")
SAID = ["X moves.", "What now?", "1 2 3", "The board is empty", "-"]
BAD: list[tuple[dict[str, Any], int]] = [
    ({"model": "main@9"}, 404),
    ({"top_p": 0.5}, 400),
    ({"max_tokens": 100_000}, 400),
    ({"messages": []}, 400),
    ({"temperature": -1}, 400),
]
HOW = {"plain": 50, "streamed": 25, "two": 5, "left": 10, "cut": 5, "bad": 12, "garbage": 3}
"""Actions of a client with their weights."""


class Client:
    """Asks one thing after another, and checks what it gets against what is known."""

    def __init__(self, url: str, known: dict[int, str], seed: int, tally: Counter[str]) -> None:
        self._openai = openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=60)
        self._url, self._known, self._tally = url, known, tally
        self._random = random.Random(seed)

    async def work(self, until: float) -> None:
        async with self._openai:
            while time.monotonic() < until:
                (how,) = self._random.choices(list(HOW), list(HOW.values()))
                number = self._random.choice(list(self._known))
                try:
                    await getattr(self, f"_{how}")(number)
                    self._tally[how] += 1
                except openai.RateLimitError as error:
                    self._tally["busy"] += 1
                    await asyncio.sleep(float(error.response.headers["retry-after"]))

    async def _plain(self, number: int) -> None:
        reply = await self._openai.chat.completions.create(**asked(number), logprobs=True)
        (choice,) = reply.choices
        assert choice.message.content == self._known[number]
        assert len(choice.logprobs.content) == reply.usage.completion_tokens
        self._tally["tokens"] += reply.usage.completion_tokens

    async def _two(self, number: int) -> None:
        reply = await self._openai.chat.completions.create(**asked(number), n=2)
        assert reply.choices[0].message.content == self._known[number]
        self._tally["tokens"] += reply.usage.completion_tokens

    async def _streamed(self, number: int) -> None:
        stream = await self._openai.chat.completions.create(
            **asked(number), stream=True, stream_options={"include_usage": True}
        )
        said, usage = "", None
        async for piece in stream:
            usage = piece.usage or usage
            said += "".join(choice.delta.content or "" for choice in piece.choices)
        assert said == self._known[number] and usage is not None
        self._tally["tokens"] += usage.completion_tokens

    async def _left(self, number: int) -> None:
        """Goes away after the first piece of a long answer."""
        longer = asked(number) | {"max_tokens": 60, "temperature": 2.0}
        async with await self._openai.chat.completions.create(**longer, stream=True) as stream:
            await anext(stream)

    async def _cut(self, number: int) -> None:
        """Goes away at any moment."""
        asking = asyncio.create_task(self._openai.chat.completions.create(**asked(number), n=4))
        await asyncio.sleep(self._random.uniform(0, 0.2))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def _bad(self, number: int) -> None:
        change, status = self._random.choice(BAD)
        with pytest.raises(openai.APIStatusError) as error:
            await self._openai.chat.completions.create(**(asked(number) | change))
        assert error.value.status_code == status and error.value.body is not None

    async def _garbage(self, number: int) -> None:
        headers = {"Content-Type": "application/json"}
        async with httpx.AsyncClient(timeout=60) as client:
            body = self._random.randbytes(number)
            reply = await client.post(
                f"{self._url}/chat/completions", content=body, headers=headers
            )
        assert reply.status_code == 400 and reply.json()["error"]["message"]


def asked(number: int) -> dict[str, Any]:
    """The request of a number."""
    messages = [{"role": "user", "content": SAID[number % len(SAID)]}]
    model = VERSIONS[number % len(VERSIONS)]
    return {"model": model, "messages": messages, "max_tokens": 4 + number % 9, "seed": number}


@pytest.mark.tables("serving", 1)
@pytest.mark.slow
async def test_64_clients_get_their_own_answers(tmp_path: Path, tiny_folder: Path) -> None:
    model = {"name": str(tiny_folder), "dtype": "float32", "adapter": {"rank": 4}}
    config = served_config(model=model, actors={"games_in_flight": 32})
    make_run(tmp_path / "run", config, [0, 3])
    process = background(tmp_path, ["serve", "run", "--versions", "0,3", "--port", "0"])
    url = await asyncio.to_thread(url_of, process)
    owner, tally, before = psutil.Process(process.pid), Counter[str](), 0
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
        known = {}
        for number in range(60):
            reply = await client.chat.completions.create(**asked(number))
            known[number] = reply.choices[0].message.content or ""
            before += reply.usage.completion_tokens
    clients = [Client(url, known, seed, tally) for seed in range(CLIENTS)]
    until = time.monotonic() + SECONDS
    working = asyncio.gather(*(each.work(until) for each in clients))
    sizes = list[int]()
    for _ in range(SECONDS):
        await asyncio.sleep(1.0)
        sizes.append(owner.memory_info().rss)
    files = owner.num_fds()
    await asyncio.wait_for(working, 60)
    await asyncio.sleep(1.0)  # for the last disconnected requests
    process.send_signal(signal.SIGINT)
    output, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE_S)
    assert process.returncode == 130 and no_developers_lines(output), output
    steady = sizes[WARM_S:]
    assert max(steady) - steady[0] < 20e6, [round(size / 1e6) for size in sizes]
    assert files < 300
    check(output, tally, known, before)


def check(output: str, tally: Counter[str], known: dict[int, str], before: int) -> None:
    """Assert that the command's tally of served requests agrees with the clients' own."""
    line = output.splitlines()[-1].replace(",", "")
    answered, of = map(int, re.findall(r"^served (\d+) of (\d+) requests", line)[0])
    others = {
        how: int(number) for number, how in re.findall(r"(\d+) (rejected|aborted|failed)", line)
    }
    sampled = int(re.findall(r"(\d+) sampled", line)[0])
    whole = len(known) + tally["plain"] + tally["streamed"] + tally["two"]
    assert tally["plain"] > 200 and tally["left"] > 20 and tally["cut"] > 8
    assert answered + sum(others.values()) == of and others.get("failed", 0) == 0
    assert whole <= answered <= whole + tally["left"] + tally["cut"]
    assert 0 < others["aborted"] <= tally["left"] + tally["cut"]
    # Rejected are prompts that are too long and requests over the queue limit.
    assert tally["busy"] <= others.get("rejected", 0) <= tally["busy"] + tally["bad"] + tally["cut"]
    assert sampled >= before + tally["tokens"]
