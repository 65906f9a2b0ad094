"""What every oracle is to those who ask it, and what is counted of it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from unstable.types import GameResult, Turn

T = TypeVar("T")
ValueOrError = float | None | Exception
"""A value, None where the question does not apply, or why there is no answer to it."""


class OracleError(Exception):
    """A call that failed: OracleError("http://... answers 503", pause_s=2.0)

    `again`: another call may not. `pause_s`: the time until then that the service asks for.
    """

    def __init__(self, why: str, *, again: bool = True, pause_s: float | None = None) -> None:
        super().__init__(why)
        self.again = again
        self.pause_s = pause_s


class OracleQuestion(NamedTuple):
    """What an oracle is asked at a time.

    `content` is exactly what it is told, as plain values; a function, which may look at all of the
    game, has none unless its answers are to be kept. `flipped`: the answer is of the other side.
    """

    content: Any
    game: GameResult
    judged: Turn | int
    flipped: bool = False


class OracleCounts:
    """What a term has been asked since the last `take`."""

    def __init__(self) -> None:
        self.take()

    def count(self, name: str, by: int = 1) -> None:
        """Add to a count."""
        self._counts[name] = self._counts.get(name, 0) + by

    def add(self, name: str, value: float) -> None:
        """Add a value to those whose mean is asked for."""
        total, number = self._means.get(name, (0.0, 0))
        self._means[name] = total + value, number + 1

    def take(self) -> tuple[dict[str, int], dict[str, tuple[float, int]]]:
        """Counts, and the sum and number of values, by name; begins anew."""
        taken = getattr(self, "_counts", {}), getattr(self, "_means", {})
        self._counts: dict[str, int] = {}
        self._means: dict[str, tuple[float, int]] = {}
        return taken


class OracleCaller(Protocol):
    """Makes a call as the term's config says: few at a time, each in its time, and again."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the call returns; raises what the last one raised."""


class OracleReply(NamedTuple):
    """What a model says, and the tokens that were put through for it."""

    text: str
    prompt_tokens: int
    reply_tokens: int


class ChatEngine(Protocol):
    """The actor's own engine, as a judge asks it."""

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
        """The answer to a chat; `adapter` is the field of the config that names its folder."""


class Oracle:
    """Something that values what it is told; `rewards/oracles/` has a subclass for each kind."""

    def __init__(
        self, name: str, field: str, *, at_once: int | None = None, batch: int | None = None
    ) -> None:
        """`name` is the term's, for messages, `field` its entry, such as judges.NAME.

        `at_once` calls of `batch` questions are the most it can be made, where that is by nature.
        """
        self.name = name
        self.field = field
        self.counts = OracleCounts()
        self.at_once = at_once
        self.batch = batch

    @property
    def settings(self) -> Any:
        """All that its answers depend on besides what is asked, as plain values."""
        raise NotImplementedError

    def questions(
        self, result: GameResult, game: GameResult, judged: Turn | int
    ) -> Sequence[OracleQuestion]:
        """What is asked about a turn or a seat of a game, which may be a branch of `result`.

        The value is the mean of the answers; without any question there is none.
        """
        raise NotImplementedError

    async def answer(
        self, questions: Sequence[OracleQuestion], call: OracleCaller
    ) -> Sequence[ValueOrError]:
        """An answer to each question; raises where none of them has one."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `ConfigError` where it cannot be asked from here; loads no model."""

    def serve(self, engine: ChatEngine) -> None:
        """Take the actor's engine, if this oracle asks it."""

    async def close(self) -> None:
        """Give back what it holds."""
