"""A user's coroutine function as an oracle, for one turn or seat or for a batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unstable.rewards.oracles.base import Oracle, OracleCaller, OracleQuestion, ValueOrError
from unstable.rewards.oracles.telling import item
from unstable.types import GameResult, Turn


class FunctionOracle(Oracle):
    """An oracle that calls `term(result, turn)` or, for lists, `term(results, turns)`."""

    def __init__(
        self,
        name: str,
        field: str,
        function: Callable[..., Any],
        args: Mapping[str, Any],
        *,
        together: bool,
        kept: bool,
    ) -> None:
        """Create it; `together`: one call judges a batch; `kept`: answers are cached by `item`."""
        super().__init__(name, field, batch=None if together else 1)
        self._function = function
        self._args = dict(args)
        self._together = together
        self._kept = kept

    @property
    def settings(self) -> Any:
        return self._args

    def questions(
        self, result: GameResult, game: GameResult, judged: Turn | int
    ) -> Sequence[OracleQuestion]:
        return [OracleQuestion(item(game, judged) if self._kept else None, game, judged)]

    async def answer(
        self, questions: Sequence[OracleQuestion], call: OracleCaller
    ) -> Sequence[ValueOrError]:
        games, judged = [q.game for q in questions], [q.judged for q in questions]
        if not self._together:
            return [await call(lambda: self._function(games[0], judged[0], **self._args))]
        answers = await call(lambda: self._function(games, judged, **self._args))
        if not isinstance(answers, Sequence) or isinstance(answers, str):
            kind = type(answers).__name__
            raise TypeError(f"reward term {self.name} returned a {kind}; return a list of numbers")
        return answers
