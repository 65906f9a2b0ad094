"""A training run, from a config to its folder."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from unstable.commands.prepare import Resolved, check, exact_games, prepare, show_plan
from unstable.commands.report import report_at_end
from unstable.commands.session import (
    ended_by_sigterm,
    failures_logged,
    new_run,
    run_to_end,
    starting,
    status,
)
from unstable.commands.teach import taught
from unstable.config import ConfigError, RunConfig, RunFailedError, load, one_line
from unstable.datasets.offline import OfflineData
from unstable.loop.context import Context, Interrupt, sleeping
from unstable.loop.state import RunState, restore
from unstable.loop.train import train as run_loop
from unstable.models.weights import ready_weights
from unstable.planning.plan import Plan
from unstable.planning.usage import DeviceProbe
from unstable.prompts import load_style
from unstable.records.folder import RunFolder
from unstable.records.logs import logging_to
from unstable.records.text import duration
from unstable.rewards.terms import Rewards
from unstable.tracking.sinks import Callback, own_sinks
from unstable.tracking.status import Ending
from unstable.tracking.tracker import Tracker

Loop = Callable[[Context], Awaitable[str]]
"""A training loop: it makes the updates of a run and returns a line that says why it ended."""
MEASURED_S = dict(first_run=50, smollm2=46, tiny=3, tiny_kuhn=1.6, tiny_leduc=1.5, tiny_nim=2)
"""Seconds per update on two CPU cores (docs/results.md, docs/small_worlds.md), start included."""


def train(
    config: RunConfig,
    command: str | None = None,
    callbacks: Sequence[Callback] = (),
    loop: Loop = run_loop,
) -> RunFolder:
    """Run a whole training; return its folder. `command` is the command line, for the record.

    `callbacks` are sinks in addition to the config's, or factories of one from config and folder.
    `loop` makes the updates (docs/own_loop.md).

    Raises `ConfigError` for a user's mistake, if possible before any model is loaded, and
    `RunFailedError` for any other failure. An interrupt leaves a folder that is intact up to the
    last version. In a notebook, call it in a thread: it runs its own event loop.
    """
    with starting():
        check(config)
        own_sinks(config, callbacks)
        resolved = prepare(config)
    show_plan(resolved)
    if config.model.init == "auto":
        resolved = taught(resolved)
    with new_run(resolved.config, command) as folder:
        status(expected_line(resolved))
        go_on(resolved, folder, None, callbacks, loop=loop)
    return folder


def expected_line(resolved: Resolved) -> str:
    """Return a line with the expected duration of a run, if its updates are those of a config."""
    steps, wanted = resolved.config.loop.steps, _sizes(resolved.config)
    for name, seconds in MEASURED_S.items():
        if not resolved.machine.gpus and _sizes(load(name)) == wanted:
            total = duration(seconds * steps)
            return f"duration about {total} for {steps} updates ({name} on two CPU cores)"
    return f"duration unknown until update 1 of {steps}"


def _sizes(config: RunConfig) -> tuple[object, ...]:
    """Return the parts of a config on which the duration of an update depends."""
    games = [(game.env, game.args, game.prompt) for game in config.games]
    batch = config.learner.batch_size, config.learner.epochs, config.learner.algorithm.name
    return type(config), config.model.name, games, batch, config.sampling.max_tokens


def go_on(
    resolved: Resolved,
    folder: RunFolder,
    state: RunState | None,
    callbacks: Sequence[Callback] = (),
    offline: OfflineData | None = None,
    loop: Loop = run_loop,
) -> None:
    """Train in a run's folder, from a saved state or, if None, from the start.

    Training is by play, or on recorded games with `offline`. Shows the result at the end.
    """
    config = resolved.config
    with ended_by_sigterm(), logging_to(folder, "loop"):
        sinks = own_sinks(config, callbacks)
        tracker = Tracker(
            config,
            folder,
            device=resolved.machine.summary,
            usage=DeviceProbe().read,
            sinks=sinks,
        )
        tracker.view.requests = {g.key: load_style(g.prompt).request for g in config.games}
        with contextlib.closing(tracker):
            interrupt = Interrupt()
            ending: Ending = "failed"
            reason, shown = "", True
            try:
                with tracker.refreshing(), failures_logged(folder, "loop"):
                    ready_weights(config.model, tracker.phase)  # once, before processes start
                    training = _train(
                        config, resolved.plan, folder, tracker, interrupt, state, offline, loop
                    )
                    reason = run_to_end(training, tracker.print, interrupt)
                ending = "ended"
            except (ConfigError, KeyboardInterrupt) as stop:
                ending = "interrupted" if isinstance(stop, KeyboardInterrupt) else "failed"
                reason, shown = str(stop), bool(folder.versions())
                raise
            except RunFailedError as error:
                reason = str(error)
                raise
            finally:
                if shown:
                    tracker.finish(one_line(reason), ending)
                    wanted = config.tracking.report
                    report = report_at_end(folder, tracker.print) if wanted else None
                    tracker.end(one_line(reason) or ending, report)


async def _train(
    config: RunConfig,
    plan: Plan,
    folder: RunFolder,
    tracker: Tracker,
    interrupt: Interrupt,
    state: RunState | None,
    offline: OfflineData | None,
    loop: Loop,
) -> str:
    from unstable.runtime.processes import processes  # importing Ray takes a second

    started = processes(config, plan, folder, tracker.phase, tracker.waits, tracker.print)
    async with started as (actors, learner, joined):
        context = Context(
            config=config,
            folder=folder,
            actors=actors,
            learner=learner,
            joined=joined,
            tracker=tracker,
            rewards=Rewards(config.buffer.rewards, config.judges),
            exact_games=exact_games(config),
            interrupt=interrupt,
            offline=offline,
        )
        if state is not None:
            async with sleeping(actors, config):
                await learner.load(state.version)
            await restore(context, state)
        return await loop(context)
