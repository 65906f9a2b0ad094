"""Agents with a tool: two seats compute a sum, and the nearer answer wins.

A tool call, its output and the rest of the answer are one turn; the output is not trained on.
"""

import json
import random
import re
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from unstable.drivers import OpenGame, SeatAddress

TERMS = {"a": {"type": "number"}, "b": {"type": "number"}}
SCHEMA = {"type": "object", "properties": TERMS, "required": ["a", "b"]}
ABOUT = {"name": "add", "description": "The sum of two numbers.", "parameters": SCHEMA}
ADD: Any = {"type": "function", "function": ABOUT}
ASKED = "Call add for {} + {}."


def shown(a: int, b: int) -> list[Any]:
    """Return an example of a tool call, because its description is not enough for a small model."""
    call = {"name": "add", "arguments": json.dumps({"a": a, "b": b})}
    return [
        {"role": "user", "content": ASKED.format(a, b)},
        {"role": "assistant", "tool_calls": [{"id": "0", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "0", "content": str(a + b)},
        {"role": "assistant", "content": str(a + b)},
    ]


class Calculator:
    def __init__(self) -> None:  # no retries: each would be a further turn
        http = DefaultAsyncHttpxClient(trust_env=False)
        self.client = AsyncOpenAI(api_key="a seat's", max_retries=0, http_client=http)

    async def play(self, game: OpenGame) -> list[int]:
        a, b = random.Random(game.seed).choices(range(1, 100), k=2)
        first, second = [abs(await self.answer(seat, a, b) - a - b) for seat in game.seats]
        return [(first < second) - (first > second), (second < first) - (second > first)]

    async def answer(self, seat: SeatAddress, a: int, b: int) -> float:
        """Return the last number in a seat's answer; infinite without one."""
        client = self.client.with_options(base_url=seat.base_url, api_key=seat.api_key)
        chat = [*shown(38, 25), *shown(7, 64), {"role": "user", "content": ASKED.format(a, b)}]
        while True:  # terminates, since the tokens of a turn, all calls included, are limited
            reply = await client.chat.completions.create(model="seat", messages=chat, tools=[ADD])
            message: Any = reply.choices[0].message
            if not message.tool_calls:
                return float(["inf", *re.findall(r"\d+(?:\.\d+)?", message.content or "")][-1])
            chat.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                try:
                    terms = json.loads(call.function.arguments)
                    output = f"{float(terms['a']) + float(terms['b']):g}"
                except (ValueError, TypeError, KeyError):
                    output = "add takes two numbers, a and b"
                chat.append({"role": "tool", "tool_call_id": call.id, "content": output})
