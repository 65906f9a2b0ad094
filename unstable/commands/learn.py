"""A run of `unstable learn`: an algorithm on recorded games; nothing is played to train on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unstable.commands import resume as resuming
from unstable.commands.offline import (
    check_moves_kept,
    offline_data,
    origin_of,
    write_origins,
)
from unstable.commands.prepare import check, prepare, show_plan
from unstable.commands.session import make_folder, removed_if_empty, starting, status
from unstable.commands.train import go_on
from unstable.config import ConfigError, RunConfig, load
from unstable.datasets.offline import PAIR
from unstable.planning.resolve import UNDECIDED
from unstable.records.environment import write_environment
from unstable.records.folder import RunFolder, existing_run
from unstable.records.judged import terms_record

_BEGINS: Mapping[str, Any] = {
    **UNDECIDED,
    **{"learner.state": None, "learner.updates_before": 0, "learner.updates_after": 0},
    **{"tracking.run_dir": None, "tracking.name": None},
    **{"loop.max_time": None, "groups.size": "auto", "groups.drop_tied": False},
    **{"openings.share": 0.0, "actors.policy_refresh": "game"},
    **{"buffer.capacity": "auto", "learner.num": "auto"},
}
"""What the config of a run that has played does not say for one that begins and plays nothing."""


def learn(
    runs: Sequence[Path],
    overrides: Mapping[str, Any],
    command: str | None = None,
    base: RunConfig | None = None,
) -> RunFolder:
    """Train on the recorded games of runs, with the first one's config; returns the run's folder.

    Without runs, on `learn.pairs` alone, with the config `base`. `overrides` are changes of the
    config, `command` is what began it, for the record. Raises as `train` does; what an interrupt
    leaves, `resume` goes on with.
    """
    folders = [existing_run(path) for path in runs]
    for number, folder in enumerate(folders):
        if folder.root.resolve() in [each.root.resolve() for each in folders[:number]]:
            raise ConfigError(f"RUN = {str(folder.root)!r} is given twice; give it once")
    origin = base if base is not None else load(str(folders[0].config))
    begun = _begun(folders[0], overrides) if base is None else _of_base(base, overrides)
    config = _untaught(begun)
    _check(config, origin)
    with starting():
        check(config)
        origins = [origin_of(folder) for folder in folders]
        check_moves_kept(config, origins)
        data, line = offline_data(config, origins)
        steps = min(config.loop.steps, data.updates) if "loop.steps" in overrides else data.updates
        size = max(data.index.counts.largest, PAIR if config.learn.pairs else 1)
        made = {"loop.steps": steps, "groups.size": size}
        resolved = prepare(config.updated(made))
    show_plan(resolved)
    status(f"{line} · {steps:,} updates")
    new = make_folder(resolved.config, "offline")
    with removed_if_empty(new), new.held(f"tracking.run_dir = {str(new.root)!r}"):
        write_environment(new, command)
        write_origins(new, resolved.config, origins, data.index.counts)
        go_on(resolved, new, None, offline=data)
    return new


def _of_base(base: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """The same of a config that has the overrides already."""
    return base.updated({name: _BEGINS[name] for name in _BEGINS.keys() - overrides.keys()})


def _begun(folder: RunFolder, overrides: Mapping[str, Any]) -> RunConfig:
    """A run's config, as one that begins and plays nothing has it."""
    return load(str(folder.config), {**_BEGINS, **overrides})


def resume(run_dir: Path, overrides: Mapping[str, Any]) -> RunFolder:
    """Go on with a run of `learn`, to the bit as if it had not ended; returns its folder."""
    if not RunFolder(run_dir).offline.is_file():
        raise ConfigError(
            f"--resume = {str(run_dir)!r}: holds no offline.json; give a folder that unstable "
            "learn left"
        )
    return resuming.resume(run_dir, overrides)


def _untaught(config: RunConfig) -> RunConfig:
    """The config with no other opponents than those of its evaluation, where nobody is played."""
    named = [each for each in config.opponents.fixed if each.key in config.eval.opponents]
    actions = [action for action in config.guard.action if action != "opponents"]
    draw = {"opponents.draw.self": 1.0, "opponents.draw.past": 0.0, "opponents.draw.fixed": 0.0}
    return config.updated(
        {**draw, "opponents.fixed": named, "guard.action": actions, "loop.mode": "sync"}
    )


def _check(config: RunConfig, origin: RunConfig) -> None:
    """Raise `ConfigError` for what recorded games cannot be trained on by."""
    algorithm, learn = config.learner.algorithm, config.learn
    name = f"learner.algorithm.name = {algorithm.name!r}"
    if (why := algorithm.why_not_offline()) is not None:
        raise ConfigError(f"{name} on recorded games: {why}")
    if learn.expert and not algorithm.imitates:
        raise ConfigError(
            f"learn.expert = {learn.expert}: an expert's moves have no reward and no probability, "
            f"which {algorithm.name} needs; take an algorithm that imitates, or leave it out"
        )
    if learn.pairs and not algorithm.takes_pairs:
        raise ConfigError(
            f"learn.pairs: {algorithm.name} learns from no pairs; take one that does, such as dpo "
            "or kto, or leave it out"
        )
    if learn.winners and algorithm.needs_groups:
        raise ConfigError(
            f"learn.winners = true: {algorithm.name} compares the trajectories of a group, and "
            "winners are alike; leave it out"
        )
    own, theirs = (terms_record(each.buffer.rewards, each.judges) for each in (config, origin))
    if own != theirs:
        raise ConfigError(
            "buffer.rewards: recorded games keep the rewards that they were given; leave it out"
        )
