"""The launch: decides once which processes run, resolves every "auto", and builds the rooms."""

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, NoReturn

from unstable import placement
from unstable.buffers.buffer import Buffer
from unstable.buffers.rewards import Rewards
from unstable.config import ConfigError, FixedOpponent, RunConfig, RunFailedError, dump, load
from unstable.evaluation.games import evaluation_games, evaluation_scores
from unstable.folder import RunFolder
from unstable.games.catalog import check_constrained, check_game, check_opponent
from unstable.loop import train as run_loop
from unstable.machine import Machine, this_machine
from unstable.models.adapters import read_adapter
from unstable.models.archive import misfit, unpack_newer
from unstable.models.base import check_model, model_path
from unstable.placement import Ids, Plan, plan
from unstable.registry import Registry
from unstable.rooms import Actor, Rooms
from unstable.routing import Router
from unstable.schedule import Schedule
from unstable.tracking.logs import setup_logging
from unstable.tracking.text import score_line
from unstable.tracking.tracker import Tracker
from unstable.types import EvalScore, GameFailure, GameResult, GameSpec, policy_player

log = logging.getLogger(__name__)

LORA_FOLDER = Path(__file__).resolve().parent.parent / "lora_ckpt"
"""Where the adapter that is shipped beside the package, as a zip, is unpacked, if it is there."""

ANY_MACHINE: Mapping[str, Any] = {
    "actors.num": "auto",
    "actors.engine": "auto",
    "actors.games_in_flight": "auto",
    "actors.gpu_memory": "auto",
    "actors.share_gpu": "auto",
    "learner.gradient_checkpointing": "auto",
    "learner.mini_batch_tokens": None,
}
"""What is decided anew where a run is judged or gone on with, maybe on another machine."""


def tell_plan(config: RunConfig, machine: Machine, *, learner: bool = True) -> Plan:
    """The plan, told on stderr where a person should know of it."""
    chosen = plan(config, machine, learner=learner)
    if machine.gpus or chosen.notes:
        print(chosen.text(), file=sys.stderr)
    return chosen


def resolve(config: RunConfig, chosen: Plan | None = None) -> RunConfig:
    """The config with every "auto" decided, by a plan that was made or by one for this machine."""
    chosen = chosen or plan(config, this_machine())
    data = placement.resolve(config, chosen).model_dump()
    if config.model.init == "auto":
        data["model"]["init"] = _starting_adapter(config)
    if config.buffer.capacity == "auto":
        newest = config.buffer.max_staleness + 1
        data["buffer"]["capacity"] = config.learner.batch_size * newest
    return RunConfig.model_validate(data)


def _starting_adapter(config: RunConfig) -> str:
    """The shipped adapter where it was made for this model, else a fresh one."""
    unpack_newer(LORA_FOLDER.with_suffix(".zip"), LORA_FOLDER)
    if not LORA_FOLDER.is_dir():
        return "fresh"
    problem = misfit(LORA_FOLDER, config.model)
    if problem is None:
        return str(LORA_FOLDER)
    # On stderr: what `unstable config` prints must stay YAML.
    print(f"{LORA_FOLDER} is not used, training starts fresh: {problem}", file=sys.stderr)
    return "fresh"


def _new_run_dir(config: RunConfig, opponents: str) -> Path:
    """outputs/<model-games-opponents-time>, with a number where that is taken."""
    model = Path(config.model.name).name
    games = "+".join(game.key.rpartition(":")[2] for game in config.games)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{model}-{games}-{opponents}-{stamp}".replace("/", "_").replace(":", "_")
    numbered = (f"{name}-{number}" for number in count(2))
    paths = (Path("outputs") / candidate for candidate in chain([name], numbered))
    return next(path for path in paths if not path.exists())


def check(config: RunConfig) -> None:
    """Raise `ConfigError` for what would fail later; loads no model."""
    check_games(config)
    Rewards(config.buffer.rewards)
    check_model(config.model)
    if config.model.init not in ("auto", "fresh"):
        read_adapter(Path(config.model.init).expanduser(), "start")
    if config.learner.algorithm.target is not None:
        from unstable.learners.algorithms import algorithm_class

        algorithm_class(config.learner.algorithm)


def check_games(config: RunConfig) -> None:
    """Raise `ConfigError` for a game that cannot be played, or a player that cannot play it."""
    places = {o.key: f"opponents.fixed.{i}" for i, o in enumerate(config.opponents.fixed)}
    for index, game in enumerate(config.games):
        check_game(game, f"games.{index}")
        if config.eval.every and config.eval.constrained:
            check_constrained(game, f"games.{index}")
        if game.seats > 1:
            for name, opponent in _opponents(config).items():
                check_opponent(opponent, game, places.get(name, "eval.opponents"))


def _opponents(config: RunConfig) -> dict[str, FixedOpponent]:
    """Fixed opponents that play in this run, by name."""
    known = config.fixed_opponents
    named = [name for name in config.eval.opponents if name in known] if config.eval.every else []
    trained = [opponent.key for opponent in config.opponents.fixed]
    return {name: known[name] for name in [*trained, *named]}


def train(config: RunConfig) -> RunFolder:
    """Run a whole training; returns its folder.

    Raises `ConfigError` for a user's mistake, before any model is loaded where that can be, and
    `RunFailedError` for whatever ended the run otherwise. An interrupt leaves a folder that is
    whole up to the last version. In a notebook, call it in a thread: it runs its own event loop.
    """
    check(config)
    machine = this_machine()
    chosen = tell_plan(config, machine)
    config = resolve(config, chosen)
    folder = make_folder(config)
    setup_logging(folder, "loop")
    model_path(config.model)  # the embedded weights are unpacked once, before many processes ask
    tracker = Tracker(config, folder, device=machine.summary)
    reason = "failed"
    try:
        with (
            removed_if_empty(folder),
            terminated_like_interrupted(),
            failures_told(folder.log("loop")),
        ):
            reason = asyncio.run(_train(config, folder, tracker, chosen, machine.cores))
    except KeyboardInterrupt:
        reason = "interrupted"
        raise
    finally:
        if folder.root.is_dir():
            tracker.finish(reason)
        tracker.close()
    return folder


@contextlib.contextmanager
def removed_if_empty(folder: RunFolder) -> Iterator[None]:
    """A mistake that shows before the first version takes the folder along.

    The repaired command may then use its name.
    """
    try:
        yield
    except ConfigError:
        if not folder.versions():
            shutil.rmtree(folder.root)
        raise


@contextlib.contextmanager
def failures_told(log_file: Path) -> Iterator[None]:
    """What ends a run by a fault goes to the log with its traceback, and on as one line."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        log.exception("the run failed")
        raise RunFailedError(f"{_first_line(error)}; details in {log_file}") from error


def _first_line(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error  # Ray wraps what another process raised
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0]}" if text else type(cause).__name__


def make_folder(config: RunConfig, against: str | None = None, head: str = "") -> RunFolder:
    """The run's folder with its config in it, which runs again, in a folder of its own.

    `against` stands in its name where the opponents would, `head` above the config's YAML.
    """
    run_dir = config.tracking.run_dir
    if against is None:
        against = "+".join(opponent.key for opponent in config.opponents.fixed) or "self"
    path = _new_run_dir(config, against) if run_dir is None else Path(run_dir).expanduser()
    folder = RunFolder(path)
    field = f"tracking.run_dir = {str(folder.root)!r}"
    elsewhere = config.tracking.model_copy(update={"run_dir": None})
    try:
        folder.root.mkdir(parents=True)
        again = config.model_copy(update={"tracking": elsewhere})
        folder.config.write_text(head + dump(again), encoding="utf-8")
    except FileExistsError:
        raise ConfigError(f"{field} exists; give a folder that does not exist yet") from None
    except OSError as error:
        raise ConfigError(
            f"{field} cannot be made ({error.strerror}); give a folder that you may write to"
        ) from None
    return folder


async def _train(
    config: RunConfig, folder: RunFolder, tracker: Tracker, chosen: Plan, cores: int
) -> str:
    from unstable.processes import processes

    tracker.phase("starting")
    async with processes(config, folder, chosen, cores) as (actors, learner):
        schedule = Schedule(config)
        rooms = Rooms(
            config=config,
            folder=folder,
            actors=actors,
            learner=learner,
            buffer=make_buffer(config),
            rewards=Rewards(config.buffer.rewards),
            registry=make_registry(config),
            schedule=schedule,
            router=Router(config, schedule, len(actors)),
            tracker=tracker,
        )
        return await run_loop(rooms)


def make_buffer(config: RunConfig) -> Buffer:
    """The buffer of a run."""
    assert isinstance(config.buffer.capacity, int), "resolved by now"
    batch_size, groups = config.learner.batch_size, config.groups
    return Buffer(
        config.buffer.capacity,
        batch_size,
        config.buffer.max_staleness,
        groups.max_refills * batch_size if groups.drop_tied else None,
    )


def make_registry(config: RunConfig) -> Registry:
    """The registry of a run; its anchor is the first opponent that is a program of fixed skill."""
    opponents = _opponents(config)
    scripted = [name for name, o in opponents.items() if o.kind in ("random", "minimax", "python")]
    anchor = scripted[0] if scripted else None
    return Registry(list(opponents), anchor, config.opponents.pool_size)


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does."""

    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only that one may
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def evaluate(run_dir: Path, version: int | None, overrides: Mapping[str, Any]) -> list[EvalScore]:
    """Play a version of a run against `eval.opponents` again; prints and returns a row each.

    `version` None is the newest. Raises `ConfigError` for a folder or version that is not there.
    """
    folder = RunFolder(run_dir)
    if not folder.config.is_file():
        raise ConfigError(f"RUN_DIR = {str(run_dir)!r} holds no config.yaml; give a run's folder")
    versions = folder.versions()
    if not versions:
        raise ConfigError(f"RUN_DIR = {str(run_dir)!r} holds no checkpoint; nothing to evaluate")
    version = versions[-1] if version is None else version
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise ConfigError(f"--version = {version}: no such checkpoint in {run_dir}; known: {known}")
    config = _judging(load(str(folder.config), {**ANY_MACHINE, **overrides}))
    check_games(config)
    check_model(config.model)
    chosen = tell_plan(config, this_machine(), learner=False)
    config = placement.resolve(config, chosen)
    setup_logging(folder, "eval")
    with failures_told(folder.log("eval")):
        scores = asyncio.run(_evaluate(config, folder, version, chosen.actors))
    for score in scores:
        print(score_line(score))
    return scores


def _judging(config: RunConfig) -> RunConfig:
    """The config with no other opponents than those that judge."""
    named = [o for o in config.opponents.fixed if o.key in config.eval.opponents]
    opponents = config.opponents.model_copy(update={"fixed": named})
    evaluation = config.eval.model_copy(update={"every": 1})
    return config.model_copy(update={"opponents": opponents, "eval": evaluation})


async def _evaluate(
    config: RunConfig, folder: RunFolder, version: int, places: Sequence[Ids]
) -> list[EvalScore]:
    from unstable.remote import RemoteActor, cluster

    with cluster(len(places)):
        actors = [RemoteActor(config, folder, i, gpus) for i, gpus in enumerate(places)]
        await asyncio.gather(*(actor.start() for actor in actors))
        adapter = read_adapter(folder.checkpoint(version), policy_player(version))
        await asyncio.gather(*(actor.publish(adapter) for actor in actors))
        specs = evaluation_games(config, version)
        shares = (specs[index :: len(actors)] for index in range(len(actors)))
        played = await asyncio.gather(*map(judge, actors, shares))
        await asyncio.gather(*(actor.close() for actor in actors))
    return evaluation_scores(version, list(chain(*played)))


async def judge(actor: Actor, specs: Sequence[GameSpec]) -> list[GameResult]:
    """Have an actor play games that judge; raises `RuntimeError` if one of them fails."""
    results = [result async for result in actor.play(specs)]
    failures = [result for result in results if isinstance(result, GameFailure)]
    if failures:
        raise RuntimeError(f"{len(failures)} games failed; the first one: {failures[0].error}")
    return [result for result in results if isinstance(result, GameResult)]
