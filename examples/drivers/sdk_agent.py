r"""The calculator's seats as agents of the OpenAI Agents SDK, through the Responses API.

In an environment with `pip install openai-agents httpx`, from the root of a clone:

    unstable train --config examples/drivers/calculator.yaml --games.0.env driver --listen 8100 \
      --sampling.max_tokens 96      # the SDK raises for an answer that is cut
    python -m examples.drivers.sdk_agent http://127.0.0.1:8100
"""

import math
import re
import sys
from typing import Any

from agents import (
    Agent,
    AgentsException,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from examples.drivers.calculator import ASKED, Calculator, shown
from unstable.drivers import SeatAddress, drive


@function_tool
def add(a: float, b: float) -> str:
    """The sum of two numbers."""
    return f"{a + b:g}"


def items(a: int, b: int) -> list[Any]:
    """Return the calculator's example of a tool call as items of the Responses API."""
    name, (asked, called, output, answer) = f"{a}+{b}", shown(a, b)
    call = {"type": "function_call", "call_id": name, **called["tool_calls"][0]["function"]}
    told = {"type": "function_call_output", "call_id": name, "output": output["content"]}
    return [asked, call, told, answer]


class AgentCalculator(Calculator):
    async def answer(self, seat: SeatAddress, a: int, b: int) -> float:
        """Return the last number in an agent's answer; infinite without one."""
        client = self.client.with_options(base_url=seat.base_url, api_key=seat.api_key)
        model = OpenAIResponsesModel("seat", client)
        agent: Any = Agent(name="calculator", model=model, tools=[add])
        chat = [*items(38, 25), *items(7, 64), {"role": "user", "content": ASKED.format(a, b)}]
        try:
            result = await Runner.run(agent, chat, max_turns=4)
        except AgentsException:  # the answer was cut, or too many calls
            return math.inf
        return float(["inf", *re.findall(r"\d+(?:\.\d+)?", result.final_output or "")][-1])


if __name__ == "__main__":
    set_tracing_disabled(True)
    drive(AgentCalculator().play, sys.argv[1], at_once=16)
