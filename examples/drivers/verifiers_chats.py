"""Recorder of the chats in which verifiers' Kuhn poker requests decisions, for `verifiers_twin.py`.

It runs in the environment of `verifiers_kuhn.py`: python examples/drivers/verifiers_chats.py
chats.json
"""

import asyncio
import json
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from kuhn_poker.taskset import KuhnPokerData, KuhnPokerEnv, KuhnPokerEnvConfig, KuhnPokerTask

HANDS = 1000  # random hands: enough that all 12 decisions occur


class Seat:
    """An agent that answers with a random legal move, and records its chats."""

    def __init__(self, chats: dict[str, Any]) -> None:
        self.chats, self.chat = chats, list[dict[str, str]]()
        nothing = lambda *_: None  # noqa: E731
        self.trace = SimpleNamespace(record_reward=nothing, record_metric=nothing, info={})

    @asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator["Seat"]:
        """Play one hand."""
        self.chat.append({"role": "system", "content": task.data.system_prompt})
        yield self

    async def turn(self, prompt: str) -> SimpleNamespace:
        """Make one decision; the last sentence of the prompt lists the legal moves in brackets."""
        self.chat.append({"role": "user", "content": prompt})
        legal = re.findall(r"\[\w+\]", prompt.rpartition(":")[2])
        self.chats[json.dumps(self.chat)] = {"messages": list(self.chat), "legal": legal}
        self.chat.append({"role": "assistant", "content": random.choice(legal)})
        return SimpleNamespace(terminated=False, last_reply=self.chat[-1]["content"])


async def main(out: str) -> None:
    """Play, and write the recorded chats."""
    chats: dict[str, Any] = {}
    runs = {f"player{seat}": {"runtime": {"type": "subprocess"}} for seat in range(2)}
    config = {"taskset": {"id": "kuhn_poker"}, **runs}
    env = KuhnPokerEnv(KuhnPokerEnvConfig.model_validate(config))
    for hand in range(HANDS):
        task = KuhnPokerTask(KuhnPokerData(idx=0, prompt=None, info={"seed": hand}))
        await env.run(task, SimpleNamespace(player0=Seat(chats), player1=Seat(chats)))
    with open(out, "w") as file:
        json.dump([chats[key] for key in sorted(chats)], file, indent=1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
