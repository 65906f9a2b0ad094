"""A finished version of a run, evaluated again."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, RunConfig, load
from unstable.league.evaluation import evaluation_games, evaluation_scores
from unstable.models.base import check_model
from unstable.planning.resolve import UNDECIDED
from unstable.records.folder import RunFolder
from unstable.rooms import Actor, spread
from unstable.runtime.logs import logging_to
from unstable.runtime.prepare import Resolved, check_games, prepare, show_plan
from unstable.runtime.session import (
    failures_logged,
    heeding_sigterm,
    run_to_end,
    say,
)
from unstable.tracking.lines import Lines
from unstable.tracking.text import score_line
from unstable.types import EvalScore, GameFailure, GameResult, GameSpec


def evaluate(run_dir: Path, version: int | None, overrides: Mapping[str, Any]) -> list[EvalScore]:
    """Play a version of a run against `eval.opponents` again; prints and returns a row each.

    `version` None is the newest. Raises `ConfigError` for a folder or version that is not there.
    """
    folder = RunFolder(run_dir)
    version = checkpoint_of(folder, version)
    config = _evaluated(from_folder(folder, overrides))
    check_games(config)
    check_model(config.model)
    resolved = prepare(config, learner=False)
    show_plan(resolved)
    with heeding_sigterm(), logging_to(folder, "eval"), failures_logged(folder.log("eval")):
        scores = run_to_end(_evaluate(resolved, folder, version), say)
    for score in scores:
        print(score_line(score))
    return scores


def checkpoint_of(folder: RunFolder, version: int | None) -> int:
    """The version, or the newest one for None; raises `ConfigError` where it has no checkpoint."""
    place = f"RUN_DIR = {str(folder.root)!r}"
    if not folder.config.is_file():
        raise ConfigError(f"{place} holds no config.yaml; give a run's folder")
    versions = folder.versions()
    if not versions:
        raise ConfigError(f"{place} holds no checkpoint; give a run that has made one")
    version = versions[-1] if version is None else version
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise ConfigError(
            f"--version = {version}: no such checkpoint in {folder.root}; known: {known}"
        )
    return version


def from_folder(folder: RunFolder, overrides: Mapping[str, Any]) -> RunConfig:
    """The run's config with what is changed, to be planned for this machine."""
    return load(str(folder.config), {**UNDECIDED, **overrides})


def _evaluated(config: RunConfig) -> RunConfig:
    """The config with no other opponents than those of the evaluation."""
    named = [o for o in config.opponents.fixed if o.key in config.eval.opponents]
    opponents = config.opponents.model_copy(update={"fixed": named})
    evaluation = config.eval.model_copy(update={"every": 1})
    return config.model_copy(update={"opponents": opponents, "eval": evaluation})


async def _evaluate(resolved: Resolved, folder: RunFolder, version: int) -> list[EvalScore]:
    from unstable.runtime.processes import acting  # Ray takes a second

    specs = evaluation_games(resolved.config, version)
    lines = Lines(say)
    with lines.kept_up():
        async with acting(resolved.config, resolved.plan.actors, folder, lines.phase) as actors:
            await asyncio.gather(*(actor.publish(version) for actor in actors))
            lines.phase("evaluating", len(specs))
            results = await play_evaluation(actors, specs, lines.advance)
    return evaluation_scores(version, results)


async def play_evaluation(
    actors: Sequence[Actor], specs: Sequence[GameSpec], count: Callable[[], None] = lambda: None
) -> list[GameResult]:
    """Have the actors play an evaluation's games, and call `count` after each.

    Raises `RuntimeError` if one of them fails.
    """

    async def play(index: int, share: Sequence[GameSpec]) -> list[GameResult | GameFailure]:
        played = []
        async for result in actors[index].play(share):
            played.append(result)
            count()
        return played

    played = await spread(specs, actors, play)
    failures = [result for result in played if isinstance(result, GameFailure)]
    if failures:
        raise RuntimeError(f"{len(failures)} games failed; the first one: {failures[0].error}")
    results = [result for result in played if isinstance(result, GameResult)]
    return sorted(results, key=lambda result: result.spec.game_id)
