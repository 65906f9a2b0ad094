"""Evaluations: selecting the due ones of a version, playing them, and recording the results."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

from unstable.league.evaluation import (
    evaluation_games,
    evaluation_scores,
    game_payoffs,
    game_scores,
    rated_games,
)
from unstable.loop import state
from unstable.loop.context import HELD_OUT_LOSS, Context, decide, distribute, sleeping
from unstable.records.policies import read_policies
from unstable.records.reading import Skipped
from unstable.types import GameResult, GameSpec, Shares

Evaluation = Callable[[Context, int], Awaitable[None]]
"""Evaluates a version, given by its number."""


def due_evaluations(context: Context, version: int, *, is_last: bool = False) -> list[Evaluation]:
    """Return the evaluations of a version that the config schedules and that are not done yet.

    `is_last` counts it as the run's last version in any case.
    """
    is_last |= version == context.config.loop.steps
    config, versions = context.config.eval, context.versions
    kinds: list[tuple[int, int, Evaluation]] = [
        (config.every, versions.evaluated, evaluate),
        (config.exploitability.every, versions.measured, measure_exploitability),
    ]
    due = [
        run_evaluation
        for every, last, run_evaluation in kinds
        if every and last < version and (version % every == 0 or is_last)
    ]
    data = context.offline
    if data is not None and version not in context.held_out_losses:
        due += [measure_held_out] * data.measures(version, is_last=is_last)
    return due


async def evaluate(context: Context, version: int) -> None:
    """Play a version's evaluation games; they change nothing that is trained."""
    past = [player for player in context.past if (player.version or 0) < version]
    specs = evaluation_games(context.config, version, past)
    context.versions.judging = {seat.player for spec in specs for seat in spec.seats}
    if not context.evaluates_beside:
        context.tracker.phase("evaluating", 0, len(specs))
    play = partial(play_evaluation, context, version=version)
    # Sorted by id, so that nothing depends on an actor's speed.
    results = sorted(
        await distribute(specs, context.actors, play), key=lambda each: each.spec.game_id
    )
    context.versions.evaluated, context.versions.judging = version, set()
    context.rate(rated_games(context.config, version, results))
    if version == 0:
        context.first_scores = game_scores(version, results)
        context.first_payoffs = game_payoffs(version, results)
    first = (context.first_scores, context.first_payoffs) if version else (None, None)
    scores = evaluation_scores(version, results, *first)
    context.tracker.log_evaluation(scores, beside=context.evaluates_beside)
    context.tracker.log_alarms(context.guard.score(scores))
    context.tracker.name_best(context.guard.best)
    context.log_strengths(beside=context.evaluates_beside)


async def play_evaluation(
    context: Context, index: int, specs: Sequence[GameSpec], version: int
) -> list[GameResult]:
    """Play games of a version's evaluation on one actor."""
    played: list[GameResult] = []
    async with aclosing(context.actors[index].play(specs)) as results:
        async for result in results:
            context.count(result)
            if isinstance(result, GameResult):
                context.tracker.add_eval_episode(result, version)
                played.append(result)
            await context.look_at(index)
    return played


async def measure_exploitability(context: Context, version: int) -> None:
    """Compute the exploitability of a version in the games that are solved exactly.

    Also computes the least that it wins there from any version that was measured before it.
    """
    skipped, policies = Skipped(), dict[str, Shares]()
    past = read_policies(context.folder, version, skipped)
    for number, game in enumerate(context.exact_games):
        if not context.evaluates_beside:
            phase = "computing exploitability"
            context.tracker.phase(phase, number, len(context.exact_games))
        began = time.time()
        policy = await decide(context.actors, game, context.player(version))
        earlier = past.get(game, {})
        found = await context.actors[0].assess(game, version, policy, began, earlier)
        policies[game] = policy
        context.tracker.log_exploitability(found, beside=context.evaluates_beside)
    context.tracker.keep_policies(version, policies)
    if skipped:
        context.tracker.print(skipped.line)
    context.versions.measured = version


async def measure_held_out(context: Context, version: int) -> None:
    """Compute the held-out loss of a version: a mean over tokens of games never trained on."""
    assert context.offline is not None
    context.tracker.phase("held-out loss")
    async with sleeping(context.actors, context.config):
        losses = [await context.learner.loss_on(batch) for batch in context.offline.held_out()]
    tokens = sum(each.tokens for each in losses)
    loss = sum(each.value * each.tokens for each in losses) / tokens if tokens else None
    context.held_out_losses[version] = loss
    best = context.best_held_out
    context.tracker.log_offline({HELD_OUT_LOSS: loss, "offline/best": best})
    if context.guard.best is None:
        context.tracker.name_best(best)


async def end_evaluation(context: Context, version: int) -> None:
    """Run a version's due evaluations, and write the row of the results."""
    if due := due_evaluations(context, version):
        for run_evaluation in due:
            await run_evaluation(context, version)
        context.tracker.end_evaluation(version)
    actors = await state.actor_states(context)
    context.versions.evaluated_whole = version
    if (
        context.versions.trained == context.version
    ):  # else publishing the next version saves a state
        state.save(context, actors)


async def end_evaluations(context: Context) -> None:
    """Run all waiting evaluations, after the last update."""
    while context.evaluations.items:
        await end_evaluation(context, context.evaluations.items[0])
        del context.evaluations.items[0]
