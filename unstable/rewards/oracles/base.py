"""The interface of oracles, and counts of their use."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from unstable.types import GameResult, Turn

T = TypeVar("T")
ValueOrError = float | None | Exception
"""A value, None if the question does not apply, or the error that prevented an answer."""


class OracleError(Exception):
    """A call that failed: OracleError("http://... returned status 503", pause_s=2.0)

    `again`: a retry may succeed. `pause_s`: the pause before it that the service requests.
    """

    def __init__(self, why: str, *, again: bool = True, pause_s: float | None = None) -> None:
        super().__init__(why)
        self.again = again
        self.pause_s = pause_s


class OracleQuestion(NamedTuple):
    """One question to an oracle.

    `content` is exactly the information sent to it, as plain values; None for a function, which may
    read the whole game, unless its answers are cached. `flipped`: the answer is the other side's.
    """

    content: Any
    game: GameResult
    judged: Turn | int
    flipped: bool = False


class OracleCounts:
    """Counts of a term's requests since the last `take`."""

    def __init__(self) -> None:
        self.take()

    def count(self, name: str, by: int = 1) -> None:
        """Add to a count."""
        self._counts[name] = self._counts.get(name, 0) + by

    def add(self, name: str, value: float) -> None:
        """Add a value to a mean."""
        total, number = self._means.get(name, (0.0, 0))
        self._means[name] = total + value, number + 1

    def take(self) -> tuple[dict[str, int], dict[str, tuple[float, int]]]:
        """Return counts, and the sum and number of values, by name; resets all."""
        taken = getattr(self, "_counts", {}), getattr(self, "_means", {})
        self._counts: dict[str, int] = {}
        self._means: dict[str, tuple[float, int]] = {}
        return taken


class OracleCaller(Protocol):
    """A function that makes calls with the term's concurrency limit, timeout and retries."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the call's result; raises the last attempt's error."""


class OracleReply(NamedTuple):
    """A model's reply, and the tokens that it used."""

    text: str
    prompt_tokens: int
    reply_tokens: int


class ChatEngine(Protocol):
    """The actor's own engine, as judges use it."""

    name: str
    """Name of the base model."""

    async def __call__(
        self,
        messages: list[dict[str, str]],
        *,
        adapter: str | None,
        temperature: float,
        max_tokens: int,
        seed: int,
    ) -> OracleReply:
        """Return the answer to a chat; `adapter` is the config field that names its folder."""


class Oracle:
    """A judge that values turns or seats; `rewards/oracles/` has a subclass for each kind."""

    def __init__(
        self, name: str, field: str, *, at_once: int | None = None, batch: int | None = None
    ) -> None:
        """Create the oracle of the term `name` at the config field `field`, such as judges.NAME.

        `at_once` and `batch` are inherent limits on concurrent calls and questions per call, None
        if it has none.
        """
        self.name = name
        self.field = field
        self.counts = OracleCounts()
        self.at_once = at_once
        self.batch = batch

    @property
    def settings(self) -> Any:
        """Everything that its answers depend on except the questions, as plain values."""
        raise NotImplementedError

    def questions(
        self, result: GameResult, game: GameResult, judged: Turn | int
    ) -> Sequence[OracleQuestion]:
        """Return the questions about a turn or a seat of a game, which may be a branch of `result`.

        The value is the mean of the answers, None without questions.
        """
        raise NotImplementedError

    async def answer(
        self, questions: Sequence[OracleQuestion], call: OracleCaller
    ) -> Sequence[ValueOrError]:
        """Return an answer to each question; raises if all of them fail."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `ConfigError` if the oracle is not usable from here; loads no model."""

    def serve(self, engine: ChatEngine) -> None:
        """Receive the actor's engine, if this oracle uses it."""

    async def close(self) -> None:
        """Release its resources."""
