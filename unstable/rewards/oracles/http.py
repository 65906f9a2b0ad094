"""A service of a user's own: items go out in one POST, a number comes back for each.

The schema of both is in docs/feedback.md, and a server of it in examples/judge_server.py.
"""

from collections.abc import Sequence
from typing import Any

from unstable.config import HTTPOracle, hide_secrets, shown
from unstable.rewards.oracles.base import Call, Oracle, OracleError, Question, Silence, ValueOrError
from unstable.rewards.oracles.service import Service
from unstable.rewards.oracles.telling import item
from unstable.types import GameResult, Turn

MOST = 1e100
"""A value is below that, as all figures of a record are."""


class HTTPService(Oracle):
    """Asks a service by `{"items": [...]}`, which answers `{"values": [...]}`."""

    def __init__(self, name: str, field: str, config: HTTPOracle) -> None:
        super().__init__(name, field)
        self._config = config
        self._service = Service(
            f"reward term {name}", config.url, config.api_key_env, config.max_bytes, "url"
        )

    @property
    def settings(self) -> Any:
        return {"url": self._config.url}

    def questions(
        self, result: GameResult, game: GameResult, judged: Turn | int
    ) -> Sequence[Question]:
        return [Question(item(game, judged), game, judged)]

    async def answer(self, questions: Sequence[Question], call: Call) -> Sequence[ValueOrError]:
        body = {"items": [question.content for question in questions]}

        async def ask() -> list[Any]:
            return self._values(await self._service.post(body), len(questions))

        return list(map(self._answer, await call(ask)))

    def check(self, silence: Silence) -> None:
        self._service.check(f"{self.field}.args", silence)

    async def close(self) -> None:
        await self._service.close()

    def _values(self, reply: Any, count: int) -> list[Any]:
        values = reply.get("values") if isinstance(reply, dict) else None
        if not isinstance(values, list):
            self._service.complain(f'sent no {{"values": [...]}} but {shown(reply)}')
        if len(values) != count:
            self._service.complain(f"sent {len(values)} values for {count} items")
        for value in values:
            if not (value is None or _is_number(value) or _is_error(value)):
                self._service.complain(f"sent {shown(value)}; a value is a number or null")
        return values

    def _answer(self, value: Any) -> ValueOrError:
        if _is_error(value):
            text = hide_secrets(shown(value["error"]))
            return OracleError(f"reward term {self.name}: {self._config.url} says {text}")
        return None if value is None else float(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < MOST


def _is_error(value: Any) -> bool:
    """Whether it is `{"error": text}`: of this item alone there is no value."""
    return isinstance(value, dict) and isinstance(value.get("error"), str)
