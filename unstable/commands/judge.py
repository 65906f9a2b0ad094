"""Reward terms of recorded games, judged again without playing: `unstable judge RUN`."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from unstable.commands.finished import from_folder
from unstable.commands.prepare import prepare
from unstable.commands.session import have_weights, run_to_end, status
from unstable.config import ConfigError, LLMOracle, RunConfig, RunFailedError, escape_control
from unstable.config.plain import read_text, read_yaml
from unstable.models.inspection import check_opponents
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder, existing_run
from unstable.records.games import read_games
from unstable.records.judged import (
    Judgements,
    judged_games,
    judged_record,
    read_judged,
    read_terms,
    terms_record,
)
from unstable.records.reading import Skipped
from unstable.records.tables import Table
from unstable.records.text import fixed, interval, number
from unstable.rewards.terms import Rewards
from unstable.runtime.judge import judging
from unstable.runtime.local import LocalActor
from unstable.tracking.lines import print_table
from unstable.types import GameFailure, GameResult
from unstable.types.intervals import correlation

IN_FLIGHT = 256
"""Most games that are read but not judged yet, since a run's games may not fit into memory."""


def judge(
    run_dir: Path, terms: Path | None, name: str | None, overrides: Mapping[str, Any]
) -> Judgements:
    """Judge the run's training games by reward terms; return all judgments in the output file.

    The terms are the run's own, with `overrides`, or those of a YAML file. Games that the file
    `name` already has are not judged again. Raises `ConfigError` for terms that cannot judge, and
    for a file of other terms.
    """
    folder = existing_run(run_dir)
    config = from_folder(folder, {"actors.num": 1, **_with_terms(terms, overrides)})
    path = folder.judged(name or (terms.stem if terms is not None else "terms"))
    named = terms_record(config.buffer.rewards, config.judges)
    if path.exists() and read_terms(path) != named.terms:
        raise ConfigError(
            f"--into = {path.stem!r}: {path} has other terms; give another name, or delete it"
        )
    Rewards(config.buffer.rewards, config.judges).check()
    check_opponents(config)
    path.parent.mkdir(exist_ok=True)
    file, work = LineFile(path), _Work(folder, judged_games(path))
    try:
        if not path.stat().st_size:
            file.write(named)
        run_to_end(work.judge(config, file), status)
    finally:
        file.close()
    found = read_judged(path)
    work.show(found, path)
    if work.failed and not found:
        raise RunFailedError(f"judging failed for all {work.failed} games")
    return found


def _with_terms(terms: Path | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    if terms is None:
        return dict(overrides)
    place = f"--terms = {str(terms)!r}"
    if not terms.is_file():
        raise ConfigError(f"{place}: file not found; give a YAML file of reward terms")
    data = read_yaml(read_text(terms, place), place)
    if not isinstance(data, dict) or not data.keys() <= {"judges", "rewards"}:
        raise ConfigError(f"{place}: invalid keys; use rewards (as in buffer) and judges only")
    judges = data.get("judges") or {}
    if not isinstance(judges, dict):
        raise ConfigError(f"{place}: judges: not a mapping; write each judge under its name")
    named = {f"judges.{name}": each for name, each in judges.items()}
    return {**named, "buffer.rewards": data.get("rewards"), **overrides}


class _Work:
    """Progress and results of judging."""

    def __init__(self, folder: RunFolder, done: set[int]) -> None:
        self._folder = folder
        self._done = done
        self._skipped = Skipped()
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._outcomes: dict[tuple[int, int], float] = {}  # by game and seat
        self._counts: dict[str, Counter[str]] = {}
        self.failed, self._error = 0, ""

    async def judge(self, config: RunConfig, file: LineFile) -> None:
        """Judge the remaining games, and write one line per game."""
        async with (
            _asking(config, self._folder) as rewards,
            aclosing(rewards.judge(self._games())) as lists,
        ):
            async for judged in lists:
                for each in judged:
                    self._room.release()
                    if isinstance(each, GameFailure):
                        self.failed, self._error = self.failed + 1, each.error
                    else:
                        file.write(judged_record(each[0].spec.game_id, each[1]))
                self._count(rewards)
            self._count(rewards)

    def _count(self, rewards: Rewards) -> None:
        for term, counts in rewards.take_asked().counts.items():
            self._counts.setdefault(term, Counter()).update(counts)

    async def _games(self) -> AsyncGenerator[list[GameResult | GameFailure]]:
        files = (each.path for each in self._folder.game_files() if each.purpose == "train")
        for result in chain.from_iterable(read_games(path, self._skipped) for path in files):
            for game in result.trained:
                for seat, outcome in enumerate(game.outcomes):
                    self._outcomes[game.spec.game_id, seat] = outcome
            if result.spec.game_id not in self._done:
                await self._room.acquire()
                yield [result]

    def show(self, found: Judgements, path: Path) -> None:
        """Print statistics of the terms, and their correlation with outcomes."""
        if self._skipped:
            status(self._skipped.line)
        if self.failed:
            status(
                f"{self.failed} games failed; run the command again to retry them; last error: "
                f"{escape_control(self._error)}"
            )
        values: dict[str, dict[tuple[int, int], list[float]]] = {}
        for (game, _, seat), rewards in found.items():
            for term, reward in rewards.items():
                values.setdefault(term, {}).setdefault((game, seat), []).append(reward.raw)
        for term in self._counts:
            values.setdefault(term, {})
        columns = ["term", "trajectories", "mean", "sd", "correlation with outcome"]
        rows = [self._row(term, by_seat) for term, by_seat in values.items()]
        print_table(Table("", [*columns, "asked", "calls", "hits", "failures"], rows))
        print(path)

    def _row(self, term: str, by_seat: Mapping[tuple[int, int], Sequence[float]]) -> list[str]:
        means = {place: fmean(values) for place, values in by_seat.items()}
        known = [place for place in means if place in self._outcomes]
        related = correlation([means[p] for p in known], [self._outcomes[p] for p in known])
        spread = stdev(means.values()) if len(means) > 1 else None
        counts = self._counts.get(term, Counter())
        return [
            term,
            str(len(means)),
            number(fmean(means.values()) if means else None),
            number(spread),
            fixed(None) if related is None else interval(*related),
            *(str(counts[name]) for name in ("asked", "calls", "hits", "failures")),
        ]


@asynccontextmanager
async def _asking(config: RunConfig, folder: RunFolder) -> AsyncIterator[Rewards]:
    """Yield the terms, ready to judge; starts an engine if one of them queries it."""
    rewards, terms = judging(config, folder), config.buffer.rewards
    oracles = [config.judges[term.term].oracle for term in terms if term.term in config.judges]
    closes = rewards.close
    if any(isinstance(each, LLMOracle) and each.engine is not None for each in oracles):
        resolved = prepare(config, learner=False).config
        have_weights(resolved.model)
        actor = await LocalActor.start(resolved, folder, folder.log("judge"), rewards)
        closes = actor.close
    try:
        yield rewards
    finally:
        await closes()
