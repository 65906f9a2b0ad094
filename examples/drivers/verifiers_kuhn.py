"""Kuhn poker of another library, verifiers, unchanged: its environment plays a run's games.

It runs where `verifiers` 0.4 and its environment kuhn_poker are installed, in a separate Python
environment if they need other versions than ours: of this package it imports only `drivers`.

    unstable train --config examples/drivers/kuhn.yaml --games.0.env driver --listen.port 8100
    python examples/drivers/verifiers_kuhn.py http://127.0.0.1:8100 16

The figures of docs/results.md are of a tiny chat model:

    python examples/drivers/verifiers_chats.py chats.json                 # where verifiers is
    unstable world --config examples/drivers/verifiers_world.yaml
    unstable train --config examples/drivers/kuhn.yaml --games.0.env driver --listen.port 8100 \\
        --actors.num 1 --model.name kuhn_chats --loop.steps 40 --seed 1
    python examples/drivers/verifiers_kuhn.py http://127.0.0.1:8100 64    # there, beside the run
    unstable exploit RUN@40 --games.0.env examples.drivers.verifiers_twin:KuhnChats \\
        --games.0.args.chats chats.json --games.0.prompt compact --games.0.parser exact \\
        --listen.port 0

The deal depends on the game's seed; the environment's players 0 and 1 are our seats, queried at
their URLs.
"""

import os
import sys
from typing import Any

import httpx
import verifiers.v1 as vf
from kuhn_poker.taskset import KuhnPokerData, KuhnPokerEnv, KuhnPokerEnvConfig, KuhnPokerTask
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult

from unstable.drivers import OpenGame, drive

__all__ = ["Direct"]  # verifiers reads it from a harness module
HARNESS = os.environ.get("VERIFIERS_HARNESS", "verifiers_kuhn")  # this file; null: verifiers' own


class Direct(vf.Harness[vf.HarnessConfig]):
    """A harness that sends a chat and returns the answer: verifiers' `null` without processes."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: vf.TaskData,
    ) -> ProgramResult:
        """Make one call with the system prompt and all messages so far."""
        system, chat = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}, *map(message_to_wire, chat or ())]
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=None) as client:
            reply = await client.post(
                f"{endpoint}/chat/completions",
                headers={"Authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        return ProgramResult(exit_code=int(reply.is_error), stdout="", stderr=reply.text)


async def play(game: OpenGame) -> dict[str, Any]:
    """Play a hand; returns the rewards of the seats' traces as payoffs."""
    seats: dict[str, Any] = {}
    for number, seat in enumerate(game.seats):
        key = f"SEAT_{game.id}_{number}"  # verifiers reads keys in the environment
        os.environ[key] = seat.api_key
        seats[f"player{number}"] = {
            "harness": {"id": HARNESS},
            "runtime": {"type": "subprocess"},
            "client": {"type": "eval", "base_url": seat.base_url, "api_key_var": key},
        }
    config = KuhnPokerEnvConfig.model_validate({"taskset": {"id": "kuhn_poker"}, **seats})
    env, client = KuhnPokerEnv(config), config.player0.client
    data = KuhnPokerData(idx=0, prompt=None, info={"seed": game.seed})
    async with env.serving():
        episode = await env.run_episode(KuhnPokerTask(data), vf.ModelContext("seat", client))
    for number in range(len(game.seats)):
        del os.environ[f"SEAT_{game.id}_{number}"]
    if not episode.ok:
        raise RuntimeError(f"the episode failed: {[*episode.errors, *episode.traces[0].errors]}")
    won = {trace.agent.name: trace.rewards["payoff"].score for trace in episode.traces}
    said = episode.traces[0].info["kuhn"]["history"]
    return {"payoffs": [won[name] for name in seats], "reason": said}


if __name__ == "__main__":
    drive(
        play, sys.argv[1], at_once=int(sys.argv[2]), token=os.environ.get("UNSTABLE_DRIVER_TOKEN")
    )
