"""A player behind an OpenAI-compatible endpoint, with retries of transient failures.

It finds parameters that a model rejects (`max_tokens`, a temperature, as reasoning models do) by
trying them, once per model of an endpoint.
"""

import asyncio
import logging
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from unstable.collectors.players.base import OpponentPlayer, Player, Position, ServeAdapter
from unstable.collectors.players.ledger import Ledger
from unstable.config import (
    ConfigError,
    FixedOpponent,
    GameConfig,
    OpenAIOpponent,
    hide_secrets,
    keep_secret,
    shown,
    spare_loopback,
)
from unstable.config.endpoint import chat_parameters
from unstable.config.remote import backoff, retry_after, silence
from unstable.games.services import prompt_style
from unstable.prompts import shorten
from unstable.types import Answer, Observation, SeatSpec

if TYPE_CHECKING:
    from openai import APIError

log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_REFUSED: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
"""Parameters that a model at an endpoint has rejected, by URL and model."""

_CUT: set[tuple[str, str]] = set()
"""Models with a logged warning of cut-off replies, by URL and model."""


class OpenAIPlayer(OpponentPlayer):
    """A remote model, queried with the same chat as a local model, and a seed if `seeded`."""

    waits = True
    libraries = ("openai",)

    def __init__(self, opponent: OpenAIOpponent, game: GameConfig, temperature: float) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # slow import: 0.5 s

        keep_secret(opponent.api_key_env)
        spare_loopback()
        self._opponent = opponent
        self._style = prompt_style(game)
        self._temperature = temperature
        self._ledger = Ledger(opponent) if opponent.is_capped else None
        self._client = AsyncOpenAI(
            base_url=opponent.base_url,
            api_key=os.environ[opponent.api_key_env],
            timeout=opponent.timeout,
            max_retries=0,
            # A redirect would send a game's prompts to a host that the config does not name.
            http_client=DefaultAsyncHttpxClient(follow_redirects=False, timeout=opponent.timeout),
        )

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` if the endpoint's key is not set or the endpoint does not respond."""
        assert isinstance(opponent, OpenAIOpponent)
        keep_secret(opponent.api_key_env)
        if not os.environ.get(opponent.api_key_env):
            raise ConfigError(
                f"{field}.api_key_env = {opponent.api_key_env!r}: not set; export the "
                "endpoint's key as this variable (any text if it needs no key)"
            )
        if opponent.ledger is not None:
            try:
                Ledger(opponent).spent()
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"{field}.ledger = {shown(opponent.ledger)}: invalid ledger ({error}); name "
                    "another file"
                ) from None
        if why := silence(opponent.base_url):
            raise ConfigError(
                f"{field}.base_url = {shown(opponent.base_url)}: {why}; start the endpoint, or "
                "set the URL of a running one"
            )

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        assert isinstance(opponent, OpenAIOpponent)
        return cls(opponent, game, seat.temperature)

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Return the remote model's answer; `ValueError` for a reply without an answer."""
        reply = await self._ask(self._style.chat(observation), seed)
        text, cut = shorten(hide_secrets(reply))  # a reply may contain the key
        action = self._style.read_free_action(text)
        return Answer(
            observation=self._style.render(observation),
            text=text,
            action=action.text,
            formatted=action.formatted,
            cut_characters=cut,
        )

    async def _ask(self, messages: list[dict[str, str]], seed: int) -> str:
        extra = self._opponent.extra
        limits = (extra.get("max_completion_tokens"), extra.get("max_tokens"))
        longest = next(filter(None, limits), self._opponent.max_tokens)
        # A token has at least one character; a template adds some tokens to each message.
        most = sum(len(message["content"]) + 16 for message in messages) + longest
        if self._ledger is not None:
            self._ledger.reserve(most)
        reply = await self._reply(messages, seed)
        self._warn_of_thought(reply)
        text, tokens = _read(reply, self._opponent.base_url)
        if self._ledger is not None and tokens is not None:
            self._ledger.settle(most, tokens)
        return text

    def _warn_of_thought(self, reply: Any) -> None:
        """Log, once per model, that an answer ended before its first word, which forfeits."""
        choices = getattr(reply, "choices", None)
        choice = choices[0] if isinstance(choices, list) and choices else None
        said = getattr(getattr(choice, "message", None), "content", None)
        place = (self._opponent.base_url, self._opponent.model)
        if said or getattr(choice, "finish_reason", None) != "length" or place in _CUT:
            return
        _CUT.add(place)
        log.warning(
            "%s: reply cut off at max_tokens = %d before any text, probably by hidden reasoning; "
            "empty replies forfeit games; raise the opponent's max_tokens",
            self._opponent.model,
            self._opponent.max_tokens,
        )

    async def _reply(self, messages: list[dict[str, str]], seed: int) -> Any:
        """Return the endpoint's reply, with retries; raises the library's last error.

        Pauses follow the reply's Retry-After; the player's timeout limits them all.
        """
        from openai import APIConnectionError, APIStatusError

        failed, pause = 0, None
        last: APIConnectionError | APIStatusError
        refused = _REFUSED[(self._opponent.base_url, self._opponent.model)]
        while True:
            own = self._opponent
            parameters = chat_parameters(own.max_tokens, self._temperature, own.extra, refused)
            if own.seeded and "seed" not in own.extra:
                parameters["seed"] = seed  # 63 bits, as the API allows
            try:
                return await self._client.chat.completions.create(
                    model=self._opponent.model,
                    messages=messages,  # type: ignore[arg-type]
                    extra_body=parameters,
                )
            except APIConnectionError as error:  # includes timeouts
                failed, pause, last = failed + 1, None, error
            except APIStatusError as error:
                status = error.status_code
                name = _refused_parameter(error, parameters) if status == 400 else None
                if name is not None and name not in refused:
                    log.warning("%s rejected %s; retrying without it", self._opponent.model, name)
                    refused.add(name)
                    continue
                if 300 <= status < 400:
                    url = shown(error.response.headers.get("location", ""))
                    raise ValueError(
                        f"{self._opponent.base_url} redirects to {url}; redirects are not followed;"
                        " set base_url to the final URL"
                    ) from error
                if status not in (408, 409, 429) and status < 500:
                    raise
                failed, pause, last = failed + 1, retry_after(error.response.headers), error
            if failed > self._opponent.max_retries:
                raise last
            if pause is None:
                pause = backoff(failed, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause)


def _refused_parameter(error: "APIError", parameters: dict[str, Any]) -> str | None:
    """Return the parameter of ours that the model rejects; None for other complaints.

    Endpoints name it as `param`, or in the message alone.
    """
    for name in ("max_tokens", "temperature"):
        if name in parameters and (error.param == name or f"'{name}'" in error.message):
            return name
    return None


def _read(reply: Any, url: str) -> tuple[str, int | None]:
    """Return an answer, and its number of tokens; None if the endpoint does not count them.

    The library does not validate an endpoint's replies.
    """
    usage = getattr(reply, "usage", None)
    tokens = getattr(usage, "total_tokens", None)
    try:
        text = reply.choices[0].message.content or ""
    except (AttributeError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f"{url} sent no chat completion: {shown(str(reply))}")
    return text, tokens if isinstance(tokens, int) else None
