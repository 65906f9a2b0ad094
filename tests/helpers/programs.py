"""Programs that play games themselves, good ones and bad ones; no model's library is imported."""

import asyncio
from typing import Any

from unstable.config import GameConfig
from unstable.drivers import OpenGame
from unstable.games.game import Game
from unstable.games.services import prompt_style

KUHN: dict[str, Any] = {
    "env": "unstable.games.catalog.kuhn:KuhnPoker",
    "args": {"max_rounds": 1},
    "prompt": "compact",
    "name": "Kuhn",
}


async def own_kuhn(game: OpenGame) -> dict[str, Any]:
    """Our Kuhn poker as a program plays it: with our env, and prompts as play makes them."""
    config = GameConfig.model_validate(KUHN)
    style, play = prompt_style(config), Game(config, game.seed)
    while not play.done:
        observation = play.observe()
        legal = [move.strip("[]") for move in play.legal_moves()]
        messages = style.messages(style.render(observation))
        reply = await game.ask(observation.seat, messages, legal_moves=legal)
        play.step(style.of_game(config).read_action(reply["content"]).text)
    if play.forfeit is not None:
        return {"forfeit": play.forfeit}
    return {"payoffs": play.payoffs}


def lost_for_words(observation: str) -> str:
    """A bot that fails."""
    raise ValueError("no words")


class Loud:
    """Print a line that exceeds a pipe's buffer, and exit."""

    def __init__(self) -> None:
        print("x" * 300_000, flush=True)
        raise RuntimeError("hoarse")

    def play(self, game: OpenGame) -> None:
        """Never."""


class Slow:
    """Play like `own_kuhn`, slowly."""

    async def play(self, game: OpenGame) -> dict[str, Any]:
        """A game."""
        await game.ask(0, [{"role": "user", "content": "?"}])
        await asyncio.sleep(0.3)
        return await own_kuhn(game)
