"""Resuming of a run, and forking of another one from one of its versions."""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from unstable.commands.finished import FRESH, LEARNERS_FILE, Version, checkpoint_of, is_whole
from unstable.commands.learn import read_offline
from unstable.commands.prepare import check, prepare, show_plan
from unstable.commands.session import starting, status
from unstable.commands.train import Loop, go_on, train
from unstable.config import (
    FORMAT,
    AlgorithmConfig,
    ConfigError,
    LearnerConfig,
    RunConfig,
    check_format,
    dump,
    load,
)
from unstable.loop.state import RunState, parse
from unstable.loop.train import train as run_loop
from unstable.records.files import cut, write_whole
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows

_MEASURED = 16
"""Newest updates whose request lengths inform a plan."""
MAY_CHANGE = (
    *(f"loop.{name}" for name in ("steps", "max_time", "max_failures")),
    *(f"loop.{name}" for name in ("start_timeout", "stall_timeout")),
    *(f"actors.{name}" for name in ("num", "engine", "games_in_flight", "enforce_eager")),
    *(f"actors.{name}" for name in ("tensor_parallel", "max_loras", "max_cpu_loras")),
    *(f"actors.{name}" for name in ("engines_per_gpu", "gpu_memory", "share_gpu")),
    *("eval.*", "guard.*", "tracking.*", "cluster.*"),
    *(f"learner.{name}" for name in ("num", "parallel", "gradient_checkpointing", "compile")),
    *(f"learner.{name}" for name in ("micro_batch_size", "micro_batch_tokens")),
    *(f"opponents.fixed.*.{name}" for name in ("max_calls", "max_total_tokens", "max_retries")),
    *(f"opponents.fixed.*.{name}" for name in ("timeout", "base_url", "api_key_env")),
    *(f"games.*.{name}" for name in ("timeout", "turn_timeout", "isolated")),
)
"""Fields that may change on resume: they decide a run's length, resources and display."""


class ResumePoint(NamedTuple):
    """Point at which a run resumes: its newest version with intact files."""

    state: RunState
    broken: tuple[int, ...]  # newer published versions with damaged files

    @property
    def version(self) -> int:
        """Number of the version."""
        return self.state.version


def resume(run_dir: Path, overrides: Mapping[str, Any], loop: Loop = run_loop) -> RunFolder:
    """Resume a run; return its folder.

    `overrides` change its config, only in fields of `MAY_CHANGE`. Raises as `train` does.
    """
    folder = RunFolder(run_dir)
    place = f"--resume = {str(run_dir)!r}"
    if not folder.config.is_file():
        raise ConfigError(f"{place} has no config.yaml; give the folder of a training run")
    folder.check_links()
    config = changed(folder, overrides)
    point = find_point(folder, place)
    state = point.state
    if point.version >= config.loop.steps and state.finalized and not state.evaluations:
        raise ConfigError(
            f"loop.steps = {config.loop.steps}: the run has already made {point.version} updates; "
            f"set --steps above {point.version}"
        )
    with starting():
        offline = read_offline(config, folder)
        # The run's folder contains its start; the original may be deleted.
        started = config.updated({"model.init": "fresh", "learner.state": None})
        check(started)
        resolved = prepare(started, request_tokens=_request_tokens(folder))
    show_plan(resolved)
    begins = {"model.init": config.model.init, "learner.state": config.learner.state}
    with folder.held(place):
        aside = None
        for version in point.broken:
            status(
                f"checkpoint {version} is damaged and skipped, with everything recorded after it"
            )
        if point.broken:
            places = (folder.root / "set_aside" / str(number) for number in count())
            aside = next(place for place in places if not place.exists())
            status(f"the skipped files are in {aside}")
        status(f"the run resumes from version {point.version}")
        write_whole(folder.config, dump(resolved.config.updated(begins)).encode())
        rewind(folder, point, is_synchronous=resolved.config.loop.mode == "sync", aside=aside)
        go_on(resolved, folder, point.state, offline=offline, loop=loop)
    return folder


def _request_tokens(folder: RunFolder) -> float | None:
    """Return the mean tokens of prompt plus answer in the newest updates; None if not recorded."""
    tokens = total = 0.0
    for row in read_rows(folder.metrics)[-_MEASURED:]:
        requests = float(row.get("collect/engine/requests") or 0.0)
        tokens += requests * float(row.get("collect/engine/request_tokens") or 0.0)
        total += requests
    return tokens / total if tokens else None


def changed(folder: RunFolder, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the run's config with overrides; raises `ConfigError` for a change not allowed."""
    before, after = load(str(folder.config), {}), load(str(folder.config), overrides)
    old, new = dict(_flat(before.model_dump())), dict(_flat(after.model_dump()))
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) != new.get(path) and not any(fnmatch(path, may) for may in MAY_CHANGE):
            raise ConfigError(
                f"{path} = {new.get(path)!r}: cannot change on resume (it is {old.get(path)!r}); "
                "leave it out, or start another run with --fork"
            )
    if after.tracking.run_dir is not None:
        raise ConfigError("tracking.run_dir: a resumed run keeps its folder; leave it out")
    return after


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict | list) or not value:
        yield path, value
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        yield from _flat(each, f"{path}.{key}" if path else str(key))


def find_point(folder: RunFolder, place: str) -> ResumePoint:
    """Return the newest version with all that a run needs; raises `ConfigError` without one."""
    broken: list[int] = []
    for version in reversed(folder.versions()):
        if not folder.state(version).exists():
            continue  # pruned, or the run ended before publishing it
        state = read_whole(folder, version)
        if state is not None:
            return ResumePoint(state, tuple(broken))
        broken.append(version)
    why = f"version {broken[0]} is damaged" if broken else "it ended before its first version"
    raise ConfigError(f"{place}: nothing to resume from ({why}); start the run again")


def read_whole(folder: RunFolder, version: int) -> RunState | None:
    """Return the state kept with a version; None if any of the version's files is damaged."""
    path = folder.state(version)
    try:
        text = path.read_bytes()
        content = json.loads(text)
        if not isinstance(content, dict):
            return None
    except (OSError, ValueError, RecursionError):
        return None
    if type(content.get("format", FORMAT)) is not int or not is_whole(folder.checkpoint(version)):
        return None
    check_format(content, path)
    state = parse(text, version)
    if state is None or state.marks.keys() != folder.marks(version).keys():
        return None
    return state


def rewind(
    folder: RunFolder, point: ResumePoint, *, is_synchronous: bool, aside: Path | None = None
) -> None:
    """Rewind the run's files to a point; later content moves to `aside`.

    In asynchronous play later games stay, unless a version that is gone played them.
    """
    marks = dict(point.state.marks)
    played = folder.games("train", point.version)
    if not (is_synchronous or point.broken):
        del marks[folder.relative(played)]
        cut(played)
    folder.rewind(point.version, marks, aside)
    for version in point.state.evaluations:
        if version > point.state.evaluated:  # the run plays it again
            folder.games("eval", version).unlink(missing_ok=True)


def fork(
    run_dir: Path,
    version: Version | None,
    overrides: Mapping[str, Any],
    *,
    with_state: bool = True,
    command: str | None = None,
) -> RunFolder:
    """Train from a version of a run, as another run; return its folder.

    `version` None is the newest. `with_state` keeps optimizer, baselines and reference policy.
    `command` is the command line, for the record. Numbers, ratings and schedules start over. The
    new config names its origin.
    """
    origin = RunFolder(run_dir)
    version = checkpoint_of(origin, version)
    folder = origin.checkpoint(version).resolve()
    if with_state and not (folder / LEARNERS_FILE).is_file():
        raise ConfigError(
            f"--fork = {run_dir}@{version}: its optimizer state was deleted (see "
            "tracking.keep_checkpoints); add --fork_state false"
        )
    state = str(folder) if with_state else None
    begins = {**FRESH, "model.init": str(folder), "learner.state": state}
    config = load(str(origin.config), {**begins, **overrides})
    if with_state:
        for problem in _misfits(load(str(origin.config), {}).learner, config.learner):
            raise ConfigError(f"{problem}; add --fork_state false")
    return train(config, command)


def _misfits(kept: LearnerConfig, wanted: LearnerConfig) -> Iterator[str]:
    """Yield what the state of a learner lacks for another one, one line per problem."""
    old, new = kept.algorithm, wanted.algorithm
    if new.name != old.name:
        yield f"learner.algorithm.name = {new.name!r}: the saved state is of {old.name!r}"
    of, to = _critic(old), _critic(new)
    if to != of:  # the optimizer also updates its weights
        yield f"learner.algorithm.critic.kind = {to!r}: the saved state has critic {of!r}"
    sees = [getattr(getattr(each, "critic", None), "sees", None) for each in (old, new)]
    if of == to and sees[0] != sees[1]:
        yield f"learner.algorithm.critic.sees = {sees[1]!r}: the saved critic sees {sees[0]!r}"
    if new.uses_reference and not old.uses_reference:
        name = "kl_loss" if new.kl_loss else "kl_reward"
        yield f"learner.algorithm.{name} = {getattr(new, name)}: the saved state has no reference"
    if wanted.ema is not None and kept.ema is None:
        yield f"learner.ema = {wanted.ema}: the saved state has no running mean of the weights"


def _critic(algorithm: AlgorithmConfig) -> str | None:
    """Return the kind of an algorithm's critic; None if it has none."""
    critic = getattr(algorithm, "critic", None)
    return None if critic is None else str(critic.kind)
