"""A player behind an OpenAI-compatible endpoint; time-outs and retries are the library's."""

import os

from openai import AsyncOpenAI

from unstable.collectors.players import Answer
from unstable.config import GameConfig, OpenAIOpponent
from unstable.games.game import Game
from unstable.prompts import load_style, parse_action
from unstable.types import Observation


class OpenAIPlayer:
    """A remote model that is put the same chat as a local one; it cannot be seeded."""

    def __init__(self, opponent: OpenAIOpponent, game: GameConfig, temperature: float) -> None:
        self._opponent = opponent
        self._style = load_style(game.prompt)
        self._parser = game.parser
        self._temperature = temperature
        self._client = AsyncOpenAI(
            base_url=opponent.base_url, api_key=os.environ[opponent.api_key_env]
        )

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        reply = await self._client.chat.completions.create(
            model=self._opponent.model,
            messages=self._style.messages(observation),  # type: ignore[arg-type]
            temperature=self._temperature,
            max_tokens=self._opponent.max_tokens,
        )
        text = reply.choices[0].message.content or ""
        action = parse_action(self._parser, text, reasoning=self._style.reasoning)
        return Answer(
            observation=self._style.render(observation),
            text=text,
            action=action.text,
            formatted=action.formatted,
        )
