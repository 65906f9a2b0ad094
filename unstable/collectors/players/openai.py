"""A player behind an OpenAI-compatible endpoint; the library has time-outs and tries again."""

import os
from typing import Any

from unstable.collectors.players.base import OpponentPlayer, Player, ServeAdapter
from unstable.collectors.players.ledger import Ledger
from unstable.config import (
    ConfigError,
    FixedOpponent,
    GameConfig,
    OpenAIOpponent,
    hide_secrets,
    keep_secret,
    shown,
)
from unstable.games.game import Game
from unstable.games.services import prompt_style
from unstable.models.network import silence
from unstable.prompts import parse_action, shorten
from unstable.types import Answer, Observation, SeatSpec


class OpenAIPlayer(OpponentPlayer):
    """A remote model that is asked with the same chat as a local one; it cannot be seeded."""

    waits = True
    libraries = ("openai",)

    def __init__(self, opponent: OpenAIOpponent, game: GameConfig, temperature: float) -> None:
        from openai import AsyncOpenAI  # takes half a second

        keep_secret(opponent.api_key_env)
        self._opponent = opponent
        self._style = prompt_style(game)
        self._parser = game.parser
        self._temperature = temperature
        self._ledger = Ledger(opponent) if opponent.is_capped else None
        self._client = AsyncOpenAI(
            base_url=opponent.base_url,
            api_key=os.environ[opponent.api_key_env],
            timeout=opponent.timeout,
            max_retries=opponent.max_retries,
        )

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` where the endpoint's key is not set or nothing answers there."""
        assert isinstance(opponent, OpenAIOpponent)
        keep_secret(opponent.api_key_env)
        if not os.environ.get(opponent.api_key_env):
            raise ConfigError(
                f"{field}.api_key_env = {opponent.api_key_env!r}: not set; export the "
                "endpoint's key in it (any text, where the endpoint asks for none)"
            )
        if opponent.ledger is not None:
            try:
                Ledger(opponent).spent()
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"{field}.ledger = {shown(opponent.ledger)}: cannot be counted in ({error}); "
                    "give another file"
                ) from None
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
        """What the remote model answers; `ValueError` for a reply that holds no answer."""
        reply = await self._ask(self._style.messages(observation))
        text, cut = shorten(hide_secrets(reply))  # it may send its key back
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

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        # A token has a character at least, and a template some tokens around each message.
        most = sum(len(message["content"]) + 16 for message in messages) + self._opponent.max_tokens
        if self._ledger is not None:
            self._ledger.reserve(most)
        reply = await self._client.chat.completions.create(
            model=self._opponent.model,
            messages=messages,  # type: ignore[arg-type]
            temperature=self._temperature,
            max_tokens=self._opponent.max_tokens,
        )
        text, tokens = _read(reply, self._opponent.base_url)
        if self._ledger is not None and tokens is not None:
            self._ledger.settle(most, tokens)
        return text


def _read(reply: Any, url: str) -> tuple[str, int | None]:
    """An answer, and the tokens that it took if the endpoint counts them.

    The library does not check what an endpoint sends.
    """
    usage = getattr(reply, "usage", None)
    tokens = getattr(usage, "total_tokens", None)
    try:
        text = reply.choices[0].message.content or ""
    except (AttributeError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f"{url} sent no answer but {shown(str(reply))}")
    return text, tokens if isinstance(tokens, int) else None
