"""Evaluation of a finished version of a run."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from unstable.commands.corrected import (
    PlayedLuck,
    baseline_of,
    corrected_lines,
    fixed_before,
    luck_by_env,
)
from unstable.commands.finished import (
    Version,
    check_adapter,
    checkpoint_of,
    from_folder,
    run_on_actors,
)
from unstable.commands.prepare import (
    check_exact_games,
    check_games,
    exact_games,
    prepare,
    show_plan,
)
from unstable.commands.relabel import Wordings, exploited, scored, with_other_words
from unstable.commands.session import starting
from unstable.config import ConfigError, RunConfig
from unstable.league.evaluation import evaluation_games, evaluation_scores
from unstable.loop.context import distribute, exploit
from unstable.loop.protocols import Actor
from unstable.models.base import check_model
from unstable.models.inspection import check_opponents
from unstable.records.folder import RunFolder
from unstable.runtime.candidates import Candidates
from unstable.tracking.lines import Lines
from unstable.tracking.text import exploitability_line, score_line
from unstable.types import (
    PAST,
    EvalScore,
    Exploitability,
    GameFailure,
    GameResult,
    GameSpec,
    PlayerId,
)


def evaluate(
    run_dir: Path,
    version: Version | None,
    overrides: Mapping[str, Any],
    baseline: int | None = None,
    relabel: int | None = None,
) -> list[EvalScore]:
    """Play a version of a run against `eval.opponents` again; print and return its scores.

    With `eval.exploitability.every` in the overrides, also computes and prints exploitability.
    `version` None is the newest. With `baseline`, the number of an earlier version, also prints
    payoffs with control variates. `relabel` is a number of other wordings in which to play each
    game, too. Raises `ConfigError` for a missing folder or version.
    """
    folder = RunFolder(run_dir)
    version = checkpoint_of(folder, version)
    measured = {"eval.exploitability.every": 0} | dict(overrides)
    config, words = _evaluated(from_folder(folder, measured)), list[Wordings]()
    if not config.eval.opponents and not config.eval.exploitability.every:
        raise ConfigError(
            "eval.opponents = []: no games to play; add an opponent such as random, or set "
            "--eval.exploitability.every 1"
        )
    with starting():
        if relabel:
            config, words = with_other_words(config, relabel)
        check_games(config)
        check_exact_games(config)
        check_model(config.model)
        check_opponents(config)
        Candidates(config).check()
        check_adapter(folder.checkpoint(version))
        valued = None if baseline is None else baseline_of(folder, baseline, config)
        resolved = prepare(config, learner=False)
    show_plan(resolved)
    past = _past(folder, version, config)
    specs = evaluation_games(resolved.config, version, past)
    named = {seat.player for spec in specs for seat in spec.seats}
    served = [player for player in past if player in named]
    counted = exact_games(config) if config.eval.exploitability.every else []

    async def play(
        actors: Sequence[Actor], lines: Lines
    ) -> tuple[list[GameResult], dict[str, PlayedLuck], list[Exploitability]]:
        for player, actor in product(served, actors):
            await actor.publish(player)
        fixed = {}
        if valued is not None:
            lines.phase("fixing the values of positions")
            fixed = await fixed_before(actors, resolved.config, valued, specs)
        lines.phase("evaluating", len(specs))
        results = await play_evaluation(actors, specs, lines.advance, may_fail=True)
        lucks: dict[str, PlayedLuck] = {}
        if valued is not None:
            lines.phase("computing luck")
            lucks = await luck_by_env(actors, resolved.config, valued, fixed, results)
        if counted:
            lines.phase("computing exploitability")
        own = PlayerId.policy(version)
        return results, lucks, [await exploit(actors, game, own) for game in counted]

    results, lucks, found = run_on_actors(resolved, folder, version, "eval", play)
    scores = evaluation_scores(version, results)
    lines = (*map(score_line, scores), *map(exploitability_line, found))
    for line in (*lines, *scored(words, scores), *exploited(words, found)):
        print(line)
    if baseline is not None:
        print(*corrected_lines(version, results, lucks, baseline), sep="\n")
    return scores


def _past(folder: RunFolder, version: int, config: RunConfig) -> list[PlayerId]:
    """Return the earlier versions with a checkpoint if `eval.opponents` names the past, else [].

    Raises `ConfigError` if no version is left and `eval.opponents` has no other player.
    """
    if PAST not in config.eval.opponents:
        return []
    known = [PlayerId.policy(number) for number in folder.versions() if number < version]
    if not known and config.eval.opponents == [PAST]:
        raise ConfigError(
            f"eval.opponents = [{PAST}]: no version before {version} has a checkpoint in "
            f"{folder.root} (tracking.keep_every); name another opponent"
        )
    return known


def _evaluated(config: RunConfig) -> RunConfig:
    """Return the config with only the opponents of the evaluation."""
    named = config.opponents_among(config.eval.opponents)
    untrained = {"opponents.draw.fixed": 0.0, "opponents.draw.self": 1.0, "guard.action": []}
    return config.updated({**untrained, "opponents.fixed": named, "eval.every": 1})


async def play_evaluation(
    actors: Sequence[Actor],
    specs: Sequence[GameSpec],
    count: Callable[[], None] = lambda: None,
    *,
    may_fail: bool = False,
) -> list[GameResult]:
    """Play an evaluation's games on the actors, and call `count` after each; return them by number.

    Raises `RuntimeError` if a game fails or, if games `may_fail`, all of them do.
    """

    async def play(index: int, share: Sequence[GameSpec]) -> list[GameResult | GameFailure]:
        played = []
        async for result in actors[index].play(share):
            played.append(result)
            count()
        return played

    played = await distribute(specs, actors, play)
    failures = [result for result in played if isinstance(result, GameFailure)]
    results = [result for result in played if isinstance(result, GameResult)]
    if failures:
        said = f"{len(failures)} of {len(played)} games failed; first error: {failures[0].error}"
        if not may_fail or not results:
            raise RuntimeError(said)
        print(f"{said}; the scores are of the other games")
    return sorted(results, key=lambda result: result.spec.game_id)
