"""A player behind an OpenAI-compatible endpoint; the library tries again."""

import os

from unstable.collectors.players.base import Answer, OpponentPlayer, Player, ServeAdapter
from unstable.config import ConfigError, FixedOpponent, GameConfig, OpenAIOpponent, shown
from unstable.games.game import Game
from unstable.games.services import prompt_style
from unstable.models.network import silence
from unstable.prompts import bounded, parse_action
from unstable.types import Observation, SeatSpec


class OpenAIPlayer(OpponentPlayer):
    """A remote model that is asked with the same chat as a local one; it cannot be seeded."""

    waits = True

    def __init__(self, opponent: OpenAIOpponent, game: GameConfig, temperature: float) -> None:
        from openai import AsyncOpenAI  # takes half a second

        self._opponent = opponent
        self._style = prompt_style(game)
        self._parser = game.parser
        self._temperature = temperature
        self._client = AsyncOpenAI(
            base_url=opponent.base_url, api_key=os.environ[opponent.api_key_env]
        )

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` where the endpoint's key is not set or nothing answers there."""
        assert isinstance(opponent, OpenAIOpponent)
        if not os.environ.get(opponent.api_key_env):
            raise ConfigError(
                f"{field}.api_key_env = {opponent.api_key_env!r}: not set; export the "
                "endpoint's key in it (any text, where the endpoint asks for none)"
            )
        if why := silence(opponent.base_url):
            raise ConfigError(
                f"{field}.base_url = {shown(opponent.base_url)}: {why}; start the endpoint first, "
                "or give the URL of one"
            )

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        """The player of a seat."""
        assert isinstance(opponent, OpenAIOpponent)
        return cls(opponent, game, seat.temperature)

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        """What the remote model answers."""
        reply = await self._client.chat.completions.create(
            model=self._opponent.model,
            messages=self._style.messages(observation),  # type: ignore[arg-type]
            temperature=self._temperature,
            max_tokens=self._opponent.max_tokens,
        )
        text, cut = bounded(reply.choices[0].message.content or "")
        action = self._style.read_action(self._parser, text)
        if not action.formatted:  # it is not trained to stop where its action ends
            action = parse_action("brackets", text, reasoning=self._style.reasoning)
        return Answer(
            observation=self._style.render(observation),
            text=text,
            action=action.text,
            formatted=action.formatted,
            cut_characters=cut,
        )
