"""The launch of `unstable sft`: examples are gathered, processes are made, the result is packed."""

import asyncio
import contextlib
import importlib.metadata
import platform
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, GameConfig, RFTConfig, RunConfig, load
from unstable.evaluation.games import evaluation_games, evaluation_scores
from unstable.folder import RunFolder
from unstable.games.experts import has_expert
from unstable.launch import (
    ANY_MACHINE,
    check,
    failures_told,
    judge,
    make_folder,
    removed_if_empty,
    resolve,
    tell_plan,
    terminated_like_interrupted,
)
from unstable.machine import this_machine
from unstable.models.adapters import read_adapter, write_adapter
from unstable.models.archive import describe_base, pack_adapter, weight_files
from unstable.models.base import load_tokenizer, model_path, named_stop_token_ids
from unstable.placement import Plan
from unstable.prompts import PromptBuilder, load_style
from unstable.rooms import Actor
from unstable.sft.data import split_by_prompt
from unstable.sft.examples import (
    Sides,
    check_data,
    gather_examples,
    read_examples,
    write_examples,
)
from unstable.sft.train import EPOCH, HELD_OUT_LOSS, Course, Row, teach
from unstable.tracking.logs import setup_logging
from unstable.tracking.metrics import evaluation_metrics
from unstable.tracking.sft import SFTTracker, card, rewind
from unstable.types import policy_player

WAYS = {"greedy": 0.0, "sampled": 1.0}
"""Temperatures at which every epoch plays."""
EXPERT = "minimax"
PACKAGES = ("unstable", "torch", "transformers", "peft", "textarena")


def sft(config: RunConfig, command: str = "unstable sft") -> RunFolder:
    """Teach a fresh LoRA, or `model.init`'s, from examples; returns the run's folder.

    `command` is how it was asked for, for the card. Raises as `launch.train` does; what an
    interrupt leaves, `resume` goes on with.
    """
    check(_judged(config))
    check_data(config)
    _check_zip(config)
    model_path(config.model)  # the embedded weights are unpacked once, before many processes ask
    tokenizer = load_tokenizer(config.model)
    _check_stop_token(config, tokenizer)
    sides = split_by_prompt(gather_examples(config, tokenizer), config.sft.held_out, config.seed)
    if not sides[0]:
        raise ConfigError(
            f"sft.held_out = {config.sft.held_out}: leaves no example to train on; set it lower"
        )
    config = _teaching(config, _course(config, sides))
    machine = this_machine()
    chosen = tell_plan(config, machine)
    config = resolve(config, chosen)
    # A comment is one line of what is printable.
    line = "".join(character if character.isprintable() else " " for character in command)
    folder = make_folder(config, "sft", head=f"# {line}\n")
    with removed_if_empty(folder):
        write_examples(folder.examples, sides)
        _run(config, folder, sides, chosen, machine.cores)
    return folder


def resume(run_dir: Path) -> RunFolder:
    """Go on with a run of `sft` from its newest whole checkpoint, as fits where it now runs."""
    folder = RunFolder(run_dir)
    if not (folder.config.is_file() and folder.examples.is_file()):
        raise ConfigError(
            f"--resume = {str(run_dir)!r}: holds no {folder.examples.name}; "
            "give a folder that unstable sft left"
        )
    config = load(str(folder.config), ANY_MACHINE)
    machine = this_machine()
    chosen = tell_plan(config, machine)
    config = resolve(config, chosen)
    _run(config, folder, read_examples(folder.examples), chosen, machine.cores)
    return folder


def _judged(config: RunConfig) -> RunConfig:
    """The config whose `eval.opponents` play, however seldom training would have them."""
    return config.model_copy(update={"eval": config.eval.model_copy(update={"every": 1})})


def _check_zip(config: RunConfig) -> None:
    if config.sft.zip is None:
        return
    weight_files(config.model)
    if not Path(config.sft.zip).expanduser().parent.is_dir():
        raise ConfigError(
            f"sft.zip = {config.sft.zip!r}: its folder is not there; make it, or give another"
        )


def _check_stop_token(config: RunConfig, tokenizer: Any) -> None:
    """What answers are taught to end with must be what engines stop at."""
    game = config.games[0]
    prompts = PromptBuilder(
        tokenizer, load_style(game.prompt), config.model.chat_template, max_prompt_tokens=1
    )
    if prompts.stop_token_id not in named_stop_token_ids(config.model, tokenizer):
        token = tokenizer.decode([prompts.stop_token_id])
        raise ConfigError(
            f"model.name = {config.model.name!r}: its chat template ends an answer with {token!r}, "
            "where no engine stops; name its id in the model's generation_config.json, as "
            "eos_token_id"
        )


def _course(config: RunConfig, sides: Sides) -> Course:
    train, held_out = sides
    return Course(
        train=train,
        held_out=held_out,
        epochs=config.sft.epochs,
        patience=config.sft.patience,
        batch_size=config.learner.batch_size,
        seed=config.seed,
    )


def _teaching(config: RunConfig, course: Course) -> RunConfig:
    """The config of the learner that teaches, an optimizer step an update; "auto" starts fresh."""
    learner = {"algorithm": RFTConfig(), "steps_per_batch": 1, "epochs": 1}
    init = "fresh" if config.model.init == "auto" else config.model.init
    mode = "sync" if config.loop.mode == "auto" else config.loop.mode
    steps = course.version(course.epochs)
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"init": init}),
            "learner": config.learner.model_copy(update=learner),
            "loop": config.loop.model_copy(update={"mode": mode, "steps": steps}),
        }
    )


def _run(config: RunConfig, folder: RunFolder, sides: Sides, chosen: Plan, cores: int) -> None:
    """Teach, from the newest checkpoint on if there is one, and write the result."""
    setup_logging(folder, "sft")
    course = _course(config, sides)
    versions = folder.versions()
    rows = rewind(folder, versions[-1] if versions else -1)
    tracker = SFTTracker(config, folder, steps=config.loop.steps)
    counts = {"to train on": len(sides[0]), "held out": len(sides[1])}
    tracker.tell(f"{folder.root} · " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    try:
        with terminated_like_interrupted(), failures_told(folder.log("sft")):
            row = asyncio.run(_teach(config, folder, course, tracker, rows, chosen, cores))
            _write_result(config, folder, row, counts)
        tracker.tell(f"the adapter of epoch {row[EPOCH]} is in {folder.adapter}")
        if config.sft.zip is not None:
            tracker.tell(f"packed as {config.sft.zip}")
    except KeyboardInterrupt:
        tracker.tell(f"interrupted; to go on: unstable sft --resume {folder.root}")
        raise
    finally:
        tracker.close()


async def _teach(
    config: RunConfig,
    folder: RunFolder,
    course: Course,
    tracker: SFTTracker,
    rows: Sequence[Row],
    chosen: Plan,
    cores: int,
) -> Row:
    from unstable.processes import processes

    async with processes(config, folder, chosen, cores) as (actors, learner):
        panel = Panel(config, folder, actors)
        await panel.rest()
        saved = -1
        if versions := folder.versions():
            saved = (await learner.load(versions[-1]))[EPOCH]
        judged = [row for row in rows if HELD_OUT_LOSS in row]
        return await teach(course, learner, panel.judge, tracker, rows=judged, saved=saved)


@dataclass(frozen=True, slots=True)
class Panel:
    """The actors, which judge what is taught by having it play."""

    config: RunConfig
    folder: RunFolder
    actors: Sequence[Actor]

    async def judge(self, version: int) -> Row:
        """Play the evaluation's games with a version, greedy and sampled; metrics by name."""
        adapter = read_adapter(self.folder.checkpoint(version), policy_player(version))
        row: Row = {}
        async with self._awake():
            await asyncio.gather(*(actor.publish(adapter) for actor in self.actors))
            for way, temperature in WAYS.items():
                for game in self.config.games:
                    row |= await self._play(version, game, way, temperature)
            await asyncio.gather(*(actor.retire(adapter.name) for actor in self.actors))
        return row

    async def _play(self, version: int, game: GameConfig, way: str, temperature: float) -> Row:
        expert = [EXPERT] if has_expert(game) else []
        opponents = list(dict.fromkeys([*self.config.eval.opponents, *expert]))
        changes = {"temperature": temperature, "opponents": opponents}
        specs = evaluation_games(
            self.config.model_copy(
                update={"games": [game], "eval": self.config.eval.model_copy(update=changes)}
            ),
            version,
        )
        count = len(self.actors)
        shares = (specs[index::count] for index in range(count))
        played = await asyncio.gather(*map(judge, self.actors, shares))
        results = sorted(chain(*played), key=lambda result: result.spec.game_id)
        return evaluation_metrics(evaluation_scores(version, results), prefix=way)

    async def rest(self) -> None:
        """Leave a GPU that is shared by turns to the learner."""
        if self.config.actors.share_gpu == "sleep":
            await asyncio.gather(*(actor.sleep() for actor in self.actors))

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        if self.config.actors.share_gpu == "sleep":
            await asyncio.gather(*(actor.wake() for actor in self.actors))
        yield
        await self.rest()


def _write_result(config: RunConfig, folder: RunFolder, row: Row, counts: dict[str, int]) -> None:
    """The best epoch's adapter in a folder of its own, and as a zip if that is asked for."""
    version = row["version"]
    assert isinstance(version, int)
    adapter = read_adapter(folder.checkpoint(version), "sft")
    folder.adapter.mkdir(exist_ok=True)
    write_adapter(adapter, folder.adapter)
    if config.sft.zip is None:
        return
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    text = folder.config.read_text(encoding="utf-8")
    command = text.partition("\n")[0].removeprefix("# ")
    pack_adapter(
        adapter,
        Path(config.sft.zip).expanduser(),
        base=describe_base(config.model),
        card=card(
            text,
            command,
            row,
            counts,
            ", ".join([f"Python {platform.python_version()}", *versions]),
        ),
    )
