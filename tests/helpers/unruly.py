"""Faulty game and bots, for test_border.py."""

import asyncio
import os
import time
from typing import Any

import textarena

MOVES = ["[1]", "[2]", "[raise]"]


def misbehave(what: str) -> None:
    """Commit the fault that `what` names, such as an error, an exit, a sleep or a crash."""
    if what == "raise":
        raise ValueError("no such square")
    if what.startswith("raise"):
        raise ValueError(what)
    if what == "exit":
        raise SystemExit(3)
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "cancel":
        raise asyncio.CancelledError
    if what == "sleep":
        time.sleep(60)
    if what == "crash":
        os._exit(7)


class Unruly(textarena.Env):
    """A game that counts to three, and commits the faults that its actions name."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed)
        self.moves = list(MOVES)
        self.state.reset(
            game_state={"count": 0}, player_prompt_function=lambda player_id, game_state: "Count."
        )

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.moves.append(action)  # a partial step if the rest raises
        misbehave(action.strip("[]"))
        self.moves = list(MOVES)
        self.state.game_state["count"] += 1
        if self.state.game_state["count"] == 3:
            self.state.set_winner(player_id=self.state.current_player_id, reason="three")
        return self.state.step()


def legal_moves(env: Unruly) -> list[str]:
    return env.moves


def counts(observation: str) -> str:
    return "[1]"


BOTS: dict[str, dict[str, str]] = {"counts": {"target": f"{__name__}:counts"}}
for _what in ("raise", "exit", "interrupt", "cancel", "sleep", "crash"):

    def _by_env(observation: str, what: str = _what) -> str:
        return f"[{what}]"

    def _itself(observation: str, what: str = _what) -> str:
        misbehave(what)
        return "[1]"

    globals()[f"env_{_what}"], globals()[f"bot_{_what}"] = _by_env, _itself
    for _who in ("env", "bot"):
        BOTS[f"{_who}_{_what}"] = {"target": f"{__name__}:{_who}_{_what}"}


async def never(observation: str) -> str:
    await asyncio.sleep(60)
    return "[1]"


async def slow(observation: str) -> str:
    await asyncio.sleep(0.5)
    return "[1]"


BOTS |= {"never": {"target": f"{__name__}:never"}, "slow": {"target": f"{__name__}:slow"}}
