"""Reward terms: the rewards of a turn or a whole trajectory, each stored raw and weighted.

A term is a function, and the name of its second argument selects its subject. `turn`, or any other
name: `term(result, turn, **args)` judges one turn. `seat`: `term(result, seat, **args)` judges that
seat's whole trajectory, and counts once for it. Both return a number, or None if they do not apply.
A term that waits for something is a coroutine function and runs concurrently with the games; with
arguments `(results, turns)` or `(results, seats)` it judges a batch and returns a list. Oracles
also wait (`oracles/`). The learner does everything after the sum (normalization, baselines,
groups).
"""

from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from unstable.config import ConfigError, JudgeConfig, RewardConfig, shown
from unstable.config.plugins import faults_to
from unstable.rewards.beside import Beside
from unstable.rewards.oracles.asking import Asking, Pending
from unstable.rewards.oracles.base import ChatEngine
from unstable.rewards.term import Term, read_term
from unstable.types import GameFailure, GameResult, Reward, Sample, Trajectory, Turn
from unstable.types.tallies import TermCalls

Judged = tuple[GameResult, list[Trajectory]]
Values = list[float | None]
"""Values of terms, in the order of their calls."""
Apart = Callable[[GameResult], Awaitable[Values]]
"""A function that runs `Rewards.plain_values` elsewhere, with its result and exceptions."""


class _TermCall(NamedTuple):
    """A call of a term, for a turn or a seat's whole trajectory."""

    term: Term
    game: GameResult  # or a branch of it
    judged: Turn | int


class Rewards:
    """The config's reward terms, applied to finished games."""

    def __init__(
        self,
        rewards: Sequence[RewardConfig],
        judges: Mapping[str, JudgeConfig] = MappingProxyType({}),
        *,
        among: int = 1,
        apart: Apart | None = None,
        cache: Callable[[str], Path] | None = None,
        places: Sequence[str] = (),
    ) -> None:
        """Read the terms; `among` is the number of processes that share the concurrent calls.

        Each process may make at least one call. `apart` evaluates a user's plain terms elsewhere,
        because only the main thread can interrupt them by an alarm. `cache` returns the file of
        `cache: run` for a term's name; without it such answers stay in memory. `places` are the
        fields that name the terms, by default buffer.rewards.N.term. Raises `ConfigError` for an
        unknown term or a target that does not import.
        """
        self._terms: dict[str, Term] = {}
        fields = places or [f"buffer.rewards.{index}.term" for index in range(len(rewards))]
        for field, reward in zip(fields, rewards, strict=True):
            if reward.key in self._terms:
                raise ConfigError(
                    f"{field.removesuffix('term')}{'name' if reward.name else 'term'} = "
                    f"{shown(reward.key)}: duplicate term; add up the weights, or rename "
                    "one of them"
                )
            self._terms[reward.key] = read_term(reward, judges, field, among, cache)
        plain = any(term.is_users for term in self._terms.values())
        self._apart = apart if plain else None
        self._waits = bool(self._asked) or self._apart is not None

    @property
    def at_once(self) -> int:
        """Most concurrent calls of terms that wait; 0 without such terms."""
        return sum(term.judge.at_once for term in self._terms.values() if term.asking)

    @property
    def _asked(self) -> dict[str, Asking]:
        """Terms that wait, by name."""
        return {name: term.asking for name, term in self._terms.items() if term.asking is not None}

    def check(self) -> None:
        """Raise `ConfigError` if an oracle is not usable; loads no model."""
        for asking in self._asked.values():
            asking.check()

    def values_turns(self, name: str) -> bool:
        """Return whether `worth` accepts a term: it waits, and judges turns."""
        term = self._terms[name]
        return term.asking is not None and term.judges == "turn"

    async def worth(self, name: str, game: GameResult, turn: Turn) -> float | None:
        """Return a turn's value by a term; None if it does not apply. Raises the judge's error."""
        term = self._terms[name]
        assert term.asking is not None, "`values_turns`"
        pending = term.asking.ask(game, game, turn)
        try:
            raw = await pending.value()
        finally:
            pending.abandon()
        return None if raw is None else term.reward(raw).weighted

    def serve(self, engine: ChatEngine) -> None:
        """Let judges use the actor's engine, if the config says so."""
        for asking in self._asked.values():
            asking.oracle.serve(engine)

    async def close(self) -> None:
        """Release the oracles' resources."""
        for asking in self._asked.values():
            await asking.close()

    def take_asked(self) -> TermCalls:
        """Return the counts of terms that wait, since the last call; falsy if empty."""
        taken = {name: asking.oracle.counts.take() for name, asking in self._asked.items()}
        counts = {name: counts for name, (counts, _) in taken.items() if counts}
        return TermCalls(counts, {name: means for name, (_, means) in taken.items() if means})

    async def judge(
        self, played: AsyncGenerator[list[GameResult | GameFailure]]
    ) -> AsyncGenerator[list[Judged | GameFailure]]:
        """Yield games with their trajectories; reads the next games while terms wait.

        An exception of a term costs only its own game. Closing the iterator cancels pending terms.
        """
        if not self._waits:
            async for results in played:
                yield [await self._judge(each) for each in results]
            return
        async with aclosing(Beside(played, self._judge).lists()) as lists:
            async for judged in lists:
                yield judged

    async def _judge(self, result: GameResult | GameFailure) -> Judged | GameFailure:
        if isinstance(result, GameFailure):
            return result
        faults: list[BaseException] = []
        with faults_to(faults.append):
            return result, self._trajectories(result, await self._wait(result))
        return GameFailure.of(result.spec, faults[0])

    def plain_values(
        self, result: GameResult, begins: Callable[[], object] = lambda: None
    ) -> Values:
        """Return the value of each call of a user's plain term, in order; raises its exception.

        Calls `begins` before each term.
        """
        values: Values = []
        for term, game, judged in self._calls(result):
            if term.is_users:
                begins()
                values.append(term.value(game, judged))
        return values

    def trajectories(self, result: GameResult) -> list[Trajectory]:
        """Return a trajectory with rewards for each trained seat with a turn after the opening.

        For a forked game, returns those of its branches, from the fork on: earlier turns are common
        to all. No term may wait.
        """
        assert not self._waits, "`judge` supports terms that wait"
        values = [term.value(game, judged) for term, game, judged in self._calls(result)]
        return self._trajectories(result, values)

    def recorded(self, result: GameResult) -> list[Trajectory]:
        """Return the trajectories in a game's record, without calling any term.

        Raises `KeyError` if the record lacks rewards or has others.
        """
        found: _Found = defaultdict(dict)
        for game, seat, turns in _seats(result):
            for turn in turns:
                if turn.rewards is None:
                    raise KeyError(turn.index)
                for term, reward in turn.rewards.items():
                    judged = turn if self._terms[term].judges == "turn" else seat
                    found[_place(game, judged)][term] = reward
        return [_trajectory(game, seat, turns, found) for game, seat, turns in _seats(result)]

    async def _wait(self, result: GameResult) -> Values:
        """Return the value of each call, in order; the first exception cancels the others."""
        calls = self._calls(result)
        apart: Values = []
        if self._apart is not None and any(call.term.is_users for call in calls):
            apart = (await self._apart(result))[::-1]
        values: list[float | None | Pending] = []
        try:
            for term, game, judged in calls:
                if term.asking is not None:
                    values.append(term.asking.ask(result, game, judged))
                elif term.is_users and self._apart is not None:
                    values.append(apart.pop())
                else:
                    values.append(term.value(game, judged))
            return [await each.value() if isinstance(each, Pending) else each for each in values]
        finally:
            for each in values:
                if isinstance(each, Pending):
                    each.abandon()

    def _calls(self, result: GameResult) -> list[_TermCall]:
        return [
            _TermCall(term, game, judged)
            for game, seat, turns in _seats(result)
            for term in self._terms.values()
            for judged in (turns if term.judges == "turn" else [seat])
        ]

    def _trajectories(self, result: GameResult, values: Values) -> list[Trajectory]:
        """Return trajectories from the value of each call, in order."""
        rewards: _Found = defaultdict(dict)
        for (term, game, judged), raw in zip(self._calls(result), values, strict=True):
            if raw is not None:
                rewards[_place(game, judged)][term.config.key] = term.reward(raw)
        return [_trajectory(game, seat, turns, rewards) for game, seat, turns in _seats(result)]


_Found = dict[tuple[int, str, int], dict[str, Reward]]
"""Rewards by the turn or seat that they judge."""


def _place(game: GameResult, judged: Turn | int) -> tuple[int, str, int]:
    if isinstance(judged, Turn):
        return game.spec.game_id, "turn", judged.index
    return game.spec.game_id, "seat", judged


def _seats(result: GameResult) -> Iterator[tuple[GameResult, int, list[Turn]]]:
    """Yield each trained game of a result, with each trained seat that had a turn and its turns."""
    for game in result.trained:
        trained = game.trained_turns
        for seat, spec in enumerate(game.spec.seats):
            if spec.trained and (turns := [turn for turn in trained if turn.seat == seat]):
                yield game, seat, turns


def _trajectory(game: GameResult, seat: int, turns: Sequence[Turn], rewards: _Found) -> Trajectory:
    group_id = game.spec.seats[seat].group_id
    assert group_id is not None
    samples = []
    for turn in turns:
        assert turn.answer.sampled is not None
        own = rewards.get(_place(game, turn), {})
        tokens = turn.answer.sampled.without_top_logprobs()  # not used in training
        samples.append(Sample(turn=turn.index, tokens=tokens, rewards=own))
    return Trajectory(
        game_id=game.spec.game_id,
        env=game.spec.env,
        seat=seat,
        group_id=group_id,
        outcome=game.outcomes[seat],
        forfeit=game.forfeit == seat,
        samples=tuple(samples),
        rewards=rewards.get(_place(game, seat), {}),
    )
