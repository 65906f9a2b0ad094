"""Agents that may call a tool: two seats are asked for a sum, and the nearer answer wins.

    unstable train --config examples/drivers/calculator.yaml

Each seat is asked through the `openai` client, as any endpoint would be. A model that calls `add`
gets its output and goes on; the call, the output and what follows are one turn of the record, and
the output is not trained on.
"""

import json
import math
import random
import re
import sys
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from unstable.drivers import OpenGame, SeatAddress, drive

NUMBER = {"type": "number"}
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "required": ["a", "b"],
        },
    },
}
ASKED = "Call add for {} + {}."


def shown(a: int, b: int) -> list[Any]:
    """A chat in which the tool is called as it should be."""
    call = {"name": "add", "arguments": json.dumps({"a": a, "b": b})}
    return [
        {"role": "user", "content": ASKED.format(a, b)},
        {"role": "assistant", "tool_calls": [{"id": "0", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "0", "content": str(a + b)},
        {"role": "assistant", "content": str(a + b)},
    ]


SHOWN = [*shown(38, 25), *shown(7, 64)]
"""A small model does not take it from the tool's description alone."""


class Calculator:
    """A sum of two numbers up to `most`; a seat may call the tool in `calls` of its messages."""

    def __init__(self, most: int = 99, calls: int = 2) -> None:
        self.most, self.calls = most, calls
        # A request that is sent a second time would be a second turn, so none is.
        http = DefaultAsyncHttpxClient(trust_env=False)
        self.client = AsyncOpenAI(api_key="of a seat", max_retries=0, http_client=http)

    async def play(self, game: OpenGame) -> list[int]:
        """Ask both seats, one after the other; returns what each has won."""
        chance = random.Random(game.seed)
        terms = [chance.randint(1, self.most) for _ in range(2)]
        asked = ASKED.format(*terms)
        first, second = [abs(await self.answer(seat, asked) - sum(terms)) for seat in game.seats]
        won = (first < second) - (first > second)
        return [won, -won]

    async def answer(self, seat: SeatAddress, asked: str) -> float:
        """The last number in a seat's answer, after calls of the tool; infinite without one."""
        client = self.client.with_options(base_url=seat.base_url, api_key=seat.api_key)
        chat = [*SHOWN, {"role": "user", "content": asked}]
        for _ in range(self.calls + 1):
            reply = await client.chat.completions.create(model="seat", messages=chat, tools=[ADD])
            message: Any = reply.choices[0].message
            if not message.tool_calls:
                numbers = re.findall(r"[0-9]+(?:\.[0-9]+)?", message.content)
                return float(numbers[-1]) if numbers else math.inf
            chat.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                output = called(call.function.name, call.function.arguments)
                chat.append({"role": "tool", "tool_call_id": call.id, "content": output})
        return math.inf


def called(name: str, arguments: str) -> str:
    """The output of the tool, or what is wrong with the call."""
    try:
        terms = json.loads(arguments)
        if name == "add" and set(terms) == {"a", "b"}:
            return f"{float(terms['a']) + float(terms['b']):g}"
    except (ValueError, TypeError):
        pass
    return 'call add with the numbers a and b, such as {"a": 1, "b": 2}'


if __name__ == "__main__":
    drive(Calculator().play, sys.argv[1], at_once=16)
