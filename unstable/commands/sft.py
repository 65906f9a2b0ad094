"""A run of `unstable sft`: gathers examples, trains a LoRA on them and packs the result."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from unstable.commands.card import start_card
from unstable.commands.evaluate import play_evaluation
from unstable.commands.finished import is_whole
from unstable.commands.prepare import Resolved, check, prepare, settle, show_plan
from unstable.commands.session import (
    ended_by_sigterm,
    failures_logged,
    new_run,
    run_to_end,
    starting,
    status,
)
from unstable.config import (
    ConfigError,
    GameConfig,
    RFTConfig,
    RunConfig,
    RunFailedError,
    SFTRun,
    load_as,
    one_line,
)
from unstable.datasets.examples import (
    FineTuning,
    Split,
    read_examples,
    split_by_prompt,
    write_examples,
)
from unstable.datasets.gather import check_data, gather_examples
from unstable.games.services import game_info
from unstable.league.evaluation import evaluation_games, evaluation_scores
from unstable.loop.context import sleeping
from unstable.loop.protocols import Actor
from unstable.loop.sft import EPOCH, HELD_OUT_LOSS, RowTracker, fine_tune
from unstable.models.adapters import read_adapter, write_adapter
from unstable.models.archive import describe_base, pack_adapter, weight_files
from unstable.models.base import load_tokenizer, model_path
from unstable.models.weights import ready_weights
from unstable.planning.resolve import UNDECIDED
from unstable.records.files import check_target
from unstable.records.folder import RunFolder
from unstable.records.logs import logging_to
from unstable.records.reading import read_rows
from unstable.records.text import command_line
from unstable.report.run import read_runs
from unstable.tracking.metrics import Row, evaluation_metrics
from unstable.tracking.sft import SFTTracker, rewind
from unstable.tracking.sinks import own_sinks
from unstable.tracking.status import Ending
from unstable.types import PlayerId

TEMPERATURES = (0.0, 1.0)
"""Temperatures of each epoch's evaluation."""
EXPERT = "expert"


def sft(config: SFTRun, command: str = "unstable sft") -> RunFolder:
    """Train a fresh LoRA, `model.init`'s, or all weights on examples; return the run's folder.

    `command` is the command line, for the card. Raises as `train` does; `resume` resumes an
    interrupted run.
    """
    check(config.updated({"eval.every": 1}))  # each epoch is evaluated
    config = settle(config)
    check_data(config)
    _check_zip(config)
    model_path(config.model)  # unpacks embedded weights once, before processes start
    tokenizer = load_tokenizer(config.model)
    sides = split_by_prompt(gather_examples(config, tokenizer), config.sft.held_out, config.seed)
    if not sides[0]:
        raise ConfigError(
            f"sft.held_out = {config.sft.held_out}: leaves no example to train on; set it lower"
        )
    task = _task(config, sides)
    with starting():
        resolved = prepare(fine_tuned(config, task))
    show_plan(resolved)
    made = new_run(resolved.config, command, "sft")
    with made as folder, ended_by_sigterm(), logging_to(folder, "sft"):
        write_examples(folder.examples, sides)
        _run(resolved, folder, task)
    return folder


def resume(run_dir: Path) -> RunFolder:
    """Resume a run of `sft` from its newest intact checkpoint, planned for this machine."""
    folder = RunFolder(run_dir)
    if not (folder.config.is_file() and folder.examples.is_file()):
        raise ConfigError(
            f"--resume = {str(run_dir)!r}: no {folder.examples.name}; give the folder of an sft run"
        )
    folder.check_links()
    with starting():
        resolved = prepare(config := load_as(SFTRun, str(folder.config), UNDECIDED))
    show_plan(resolved)
    held = folder.held(f"--resume = {str(run_dir)!r}")
    with held, ended_by_sigterm(), logging_to(folder, "sft"):
        _run(resolved, folder, _task(config, read_examples(folder.examples)))
    return folder


def _check_zip(config: SFTRun) -> None:
    if config.sft.zip is None:
        return
    if config.model.trains_all:
        raise ConfigError(
            f"sft.zip = {config.sft.zip!r}: a zip holds a LoRA, but model.adapter = none trains "
            "all weights; leave sft.zip out"
        )
    weight_files(config.model)
    check_target(Path(config.sft.zip).expanduser(), "sft.zip")


def _task(config: SFTRun, sides: Split) -> FineTuning:
    train, held_out = sides
    return FineTuning(
        train=train,
        held_out=held_out,
        epochs=config.sft.epochs,
        patience=config.sft.patience,
        batch_size=config.learner.batch_size,
        seed=config.seed,
    )


def fine_tuned(config: RunConfig, task: FineTuning) -> RunConfig:
    """Return the config of a learner with one optimizer step per update; "auto" starts fresh."""
    unplayed = RunConfig()
    return config.updated(
        {
            "model.init": "fresh" if config.model.init == "auto" else config.model.init,
            "learner.algorithm": RFTConfig(),
            "groups": unplayed.groups,
            "buffer.rewards": unplayed.buffer.rewards,
            "learner.steps_per_batch": 1,
            "learner.epochs": 1,
            "loop.mode": "sync" if config.loop.mode == "auto" else config.loop.mode,
            "loop.steps": task.version(task.epochs),
        }
    )


def _run(resolved: Resolved, folder: RunFolder, task: FineTuning) -> None:
    """Train, from the newest checkpoint if one exists, and write the result."""
    config = resolved.config
    assert isinstance(config, SFTRun)
    rows = rewind(folder, _newest_whole(folder))
    tracker = SFTTracker(
        config, folder, epochs=task.epochs, steps=config.loop.steps, sinks=own_sinks(config)
    )
    ending: Ending = "failed"
    reason = ""
    counts = {"for training": len(task.train), "held out": len(task.held_out)}
    tracker.print(f"{folder.root} · " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    try:
        with tracker.refreshing(), failures_logged(folder, "sft"):
            ready_weights(config.model, lambda what, done, of: tracker.phase(f"{what} {done}/{of}"))
            main = run_fine_tuning(
                resolved, folder, task, tracker, partial(evaluate_epoch, config), rows=rows
            )
            row = run_to_end(main, tracker.print)
            _write_result(config, folder, row, counts)
        ending, reason = "ended", f"the adapter of epoch {row[EPOCH]} is in {folder.adapter}"
        tracker.print(reason)
        if config.sft.zip is not None:
            tracker.print(f"packed as {config.sft.zip}")
    except KeyboardInterrupt:
        ending = "interrupted"
        if folder.versions():
            again = command_line("unstable", "sft", "--resume", folder.root)
            tracker.print(f"interrupted; to resume: {again}")
        raise
    except (ConfigError, RunFailedError) as error:
        reason = one_line(str(error))
        raise
    finally:
        tracker.finish(reason, ending)
        tracker.close()


def _newest_whole(folder: RunFolder) -> int:
    """Return the newest version with an intact checkpoint, or -1; delete the checkpoints after it.

    Raises `ConfigError` if the row of an epoch is damaged.
    """
    version = -1
    for number in reversed(folder.versions()):
        if is_whole(folder.checkpoint(number)):
            version = number
            break
        status(f"checkpoint {number} is damaged and deleted, with everything recorded after it")
        shutil.rmtree(folder.checkpoint(number))
    epochs = [row[EPOCH] for row in read_rows(folder.metrics) if HELD_OUT_LOSS in row]
    if epochs != list(range(len(epochs))):
        raise ConfigError(
            f"{folder.metrics}: the row of an epoch is damaged or missing; start the run again"
        )
    return version


async def run_fine_tuning(
    resolved: Resolved,
    folder: RunFolder,
    task: FineTuning,
    tracker: RowTracker,
    evaluate: Callable[[Sequence[Actor], int], Awaitable[Row]],
    *,
    rows: Sequence[Row] = (),
    is_enough: Callable[[Sequence[Row]], bool] = lambda rows: False,
) -> Row:
    """Run `fine_tune` in the processes of a run; `evaluate` plays a version on actors."""
    from unstable.runtime.processes import processes  # importing Ray takes a second

    config = resolved.config
    started = processes(config, resolved.plan, folder, tracker.phase, say=tracker.print)
    async with started as (actors, learner, _):
        saved = -1
        if versions := folder.versions():
            async with sleeping(actors, config):
                await learner.load(versions[-1])
                saved = task.epoch(versions[-1])
        return await fine_tune(
            task,
            learner,
            partial(evaluate, actors),
            tracker,
            partial(sleeping, actors, config),
            rows=[row for row in rows if HELD_OUT_LOSS in row],
            saved=saved,
            is_enough=is_enough,
        )


async def evaluate_epoch(config: RunConfig, actors: Sequence[Actor], version: int) -> Row:
    """Play the evaluation's games with a version, greedy and sampled; return metrics by name."""
    row: Row = {}
    player = PlayerId.policy(version)
    await asyncio.gather(*(actor.publish(player) for actor in actors))
    for temperature in TEMPERATURES:
        for game in config.games:
            specs = evaluation_games(_of_epoch(config, game, temperature), version)
            results = await play_evaluation(actors, specs)
            row |= evaluation_metrics(evaluation_scores(version, results))
    await asyncio.gather(*(actor.retire(player) for actor in actors))
    return row


def _of_epoch(config: RunConfig, game: GameConfig, temperature: float) -> RunConfig:
    """Return the config of an evaluation in one game, also against its expert if it has one."""
    expert = [EXPERT] if game_info(game).expert else []
    opponents = list(dict.fromkeys([*config.eval.opponents, *expert]))
    evaluation = {"eval.temperature": [temperature], "eval.opponents": opponents}
    return config.updated({"games": [game], **evaluation})


def _write_result(config: SFTRun, folder: RunFolder, row: Row, counts: dict[str, int]) -> None:
    """Write the best epoch's weights to the adapter's folder, and to `sft.zip` if it is set."""
    version = row["version"]
    assert isinstance(version, int)
    adapter = read_adapter(folder.checkpoint(version), "sft")
    folder.adapter.mkdir(exist_ok=True)
    write_adapter(adapter, folder.adapter)
    if config.sft.zip is None:
        return
    (run,) = read_runs([folder.root])
    pack_adapter(
        adapter,
        Path(config.sft.zip).expanduser(),
        base=describe_base(config.model, [game.env for game in config.games]),
        card=start_card(run, version, counts),
    )
