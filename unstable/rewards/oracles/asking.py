"""Questions to oracles: collected into batches, and never sent twice.

While the maximum number of calls is in flight, new questions wait for the next call, so batches
grow with the load. The config's `on_failure` sets the value of an answer that never arrives.
"""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from unstable.config import ConfigError, JudgeConfig, one_line
from unstable.config.plugins import faults_to
from unstable.rewards.oracles.base import Oracle, OracleError, OracleQuestion, ValueOrError
from unstable.rewards.oracles.cache import Cache, digest
from unstable.rewards.oracles.calling import Caller
from unstable.rewards.oracles.telling import seat_of
from unstable.types import GameResult, Turn

log = logging.getLogger(__name__)
GATHER = 0.5
"""Time that a question waits for others in its batch, relative to the time of a call: each call
costs about a millisecond of the CPU that plays, at any batch size."""
_LEAST_GATHER_S, _MOST_GATHER_S = 0.005, 0.25
_SAID_EVERY_S = 60.0


class Failure(NamedTuple):
    """An error in place of an answer, with its first traceback, since each game raises it again."""

    error: Exception
    traceback: TracebackType | None

    @classmethod
    def of(cls, fault: BaseException) -> "Failure":
        """Convert an exception to a failure with an error that can be raised again."""
        error = fault if isinstance(fault, Exception) else RuntimeError(repr(fault))
        return cls(error, fault.__traceback__)


Found = float | None | Failure
"""An answer as its waiters receive it."""


class _PendingQuestion:
    """A question without an answer yet, and a future for each waiter."""

    def __init__(self, question: OracleQuestion, key: str | None) -> None:
        self.question = question
        self.key = key
        self.futures: list[asyncio.Future[Found]] = []

    @property
    def is_left(self) -> bool:
        """True if nobody waits for it anymore."""
        return all(future.cancelled() for future in self.futures)


class Asking:
    """A client of an oracle, with the batching, retries and cache of its judge's config."""

    def __init__(
        self, config: JudgeConfig, oracle: Oracle, *, at_once: int, cache: Path | None
    ) -> None:
        """Create it; `at_once` is this process's share, `cache` the file of answers."""
        self.oracle = oracle
        self._config = config
        self._at_once = min(at_once, oracle.at_once or at_once)
        self._batch = oracle.batch or config.batch
        is_function = config.oracle is None
        retries = (0 if is_function else 2) if config.retries == "auto" else config.retries
        self._call = Caller(
            oracle.name,
            at_once=self._at_once,
            timeout=config.timeout,
            retries=retries,
            counts=oracle.counts,
        )
        kept = config.cache != "none" and not (config.cache == "auto" and is_function)
        self._cache = Cache(cache) if kept else None
        self._settings: str | None = None
        self._queue: list[_PendingQuestion] = []
        self._open: dict[str, _PendingQuestion] = {}  # by digest of the content
        self._batches: dict[asyncio.Task[None], list[_PendingQuestion]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last: dict[tuple[str, int], float] = {}  # values, by env and seat
        self._said = -math.inf

    def check(self) -> None:
        """Raise `ConfigError` if the oracle or the file of answers is not usable."""
        self.oracle.check()
        if self._cache is not None and (problem := self._cache.problem):
            raise ConfigError(f"{self.oracle.field}.cache = {problem}")

    def ask(self, result: GameResult, game: GameResult, judged: Turn | int) -> "Pending":
        """Ask for the value of a turn or a seat."""
        questions = self.oracle.questions(result, game, judged)
        answers = list(map(self._find, questions))
        self.oracle.counts.count("asked", len(questions))
        return Pending(self, (game.spec.env, seat_of(judged)), questions, answers)

    def settle(self, role: tuple[str, int], value: Found) -> float | None:
        """Return a value for its env and seat; `on_failure` replaces a failure or raises it."""
        if isinstance(value, Failure):
            self.oracle.counts.count("failures")
            if self._config.on_failure == "drop":
                raise value.error.with_traceback(value.traceback)
            self._say(value.error)
            return self._last.get(role, 0.0) if self._config.on_failure == "last" else 0.0
        if value is not None:
            self._last[role] = value
        return value

    def leave(self) -> None:
        """Drop questions for which nobody waits anymore."""
        for waiting in [each for each in self._queue if each.is_left]:
            self._queue.remove(waiting)
            self._close(waiting)
        for task, batch in self._batches.items():
            if all(each.is_left for each in batch):
                task.cancel()
                for waiting in batch:
                    self._close(waiting)

    async def close(self) -> None:
        """Cancel pending calls and release the oracle's resources."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._batches:
            task.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)
        await self.oracle.close()

    def _find(self, question: OracleQuestion) -> asyncio.Future[Found] | Found:
        """Return the cached answer, or a future for it."""
        waiting, key = None, self._key(question)
        if key is not None and self._cache is not None:
            if key not in self._cache:
                self._cache.look()
            if key in self._cache:
                self.oracle.counts.count("hits")
                return self._cache[key]
            waiting = self._open.get(key)
            self.oracle.counts.count("hits", waiting is not None)
        if waiting is None:
            waiting = _PendingQuestion(question, key)
            self._queue.append(waiting)
            if key is not None:
                self._open[key] = waiting
            self._begin_soon()
        future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        waiting.futures.append(future)
        return future

    def _close(self, waiting: _PendingQuestion) -> None:
        """Stop adding waiters to a question."""
        if waiting.key is not None and self._open.get(waiting.key) is waiting:
            del self._open[waiting.key]

    def _key(self, question: OracleQuestion) -> str | None:
        if self._cache is None:
            return None
        if self._settings is None:
            self._settings = digest([self._config.kind, self.oracle.settings])
        return digest([self._settings, question.content])

    def _begin_soon(self) -> None:
        """Start a batch once it is full, or has waited long enough."""
        if len(self._queue) >= self._batch:
            self._begin()
        elif self._timer is None:
            pause_s = min(max(GATHER * self._call.typical_s, _LEAST_GATHER_S), _MOST_GATHER_S)
            if self._batch == 1:
                pause_s = 0.0
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and len(self._batches) < self._at_once:
            batch = self._queue[: self._batch]
            del self._queue[: self._batch]
            task = asyncio.create_task(self._answer(batch))
            self._batches[task] = batch
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        del self._batches[task]
        if self._queue:
            self._begin()

    async def _answer(self, batch: list[_PendingQuestion]) -> None:
        """Answer a batch of questions, and resolve the futures of their waiters."""
        faults: list[BaseException] = []
        answers: Sequence[ValueOrError] = []
        with faults_to(faults.append):
            answers = await self.oracle.answer([each.question for each in batch], self._call)
            if len(answers) != len(batch):
                raise OracleError(f"{len(answers)} values for {len(batch)} items")
        if faults:
            answers = [Failure.of(faults[0]).error] * len(batch)
        kept: dict[str, float | None] = {}
        for waiting, answer in zip(batch, map(self._checked, answers), strict=True):
            self._close(waiting)
            if waiting.key is not None and not isinstance(answer, Failure):
                kept[waiting.key] = answer
            for future in waiting.futures:
                if not future.done():
                    future.set_result(answer)
        if self._cache is not None:
            try:
                self._cache.add(kept)
            except OSError as error:
                self._say(error)

    def _checked(self, answer: ValueOrError) -> Found:
        if answer is None:
            return None
        if isinstance(answer, Exception):
            return Failure.of(answer)
        try:
            if math.isfinite(answer):
                return float(answer)
        except (TypeError, OverflowError):
            pass
        return Failure(ValueError(f"reward term {self.oracle.name}: invalid value {answer}"), None)

    def _say(self, error: BaseException) -> None:
        """Log an error, at most once a minute."""
        now = time.monotonic()
        if now - self._said > _SAID_EVERY_S:
            self._said = now
            text = one_line(f"{type(error).__name__}: {error}")
            log.warning("reward term %s: %s", self.oracle.name, text)


class Pending:
    """A requested value: the mean of the answers to its questions."""

    def __init__(
        self,
        asking: Asking,
        role: tuple[str, int],
        questions: Sequence[OracleQuestion],
        answers: Sequence[asyncio.Future[Found] | Found],
    ) -> None:
        self._asking = asking
        self._role = role
        self._questions = questions
        self._answers = answers
        self._futures = [each for each in answers if isinstance(each, asyncio.Future)]

    async def value(self) -> float | None:
        """Return the value; None if the term does not apply. Raises a failure under `drop`."""
        answers: list[Found] = []
        for each in self._answers:
            answers.append(await each if isinstance(each, asyncio.Future) else each)
        return self._asking.settle(self._role, self._mean(answers))

    def abandon(self) -> None:
        """Cancel the wait for answers."""
        for future in self._futures:
            future.cancel()
        if any(future.cancelled() for future in self._futures):
            self._asking.leave()

    def _mean(self, answers: Sequence[Found]) -> Found:
        for answer in answers:
            if isinstance(answer, Failure):
                return answer
        found = [
            1.0 - answer if question.flipped else answer
            for question, answer in zip(self._questions, answers, strict=True)
            if isinstance(answer, float)
        ]
        return math.fsum(found) / len(found) if found else None
