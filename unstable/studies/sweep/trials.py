"""Runs of a sweep, each checked before anything starts."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from unstable.commands.prepare import check, check_games, exact_games
from unstable.config import ConfigError, RunConfig, load
from unstable.records.reading import Row, Skipped, read_list, read_rows
from unstable.records.text import command_line
from unstable.report.comparison import ALONE
from unstable.studies.league.config import LeagueConfig, read_league
from unstable.studies.league.league import check_league, largest
from unstable.studies.league.members import League, LeagueFolder, league_of
from unstable.studies.league.population import turns
from unstable.studies.several import (
    StudyFolder,
    TrainJob,
    append,
    digest,
    is_over,
    state_of,
    train_words,
)
from unstable.studies.sweep.config import Setting, SweepConfig, read_sweep
from unstable.studies.sweep.halving import RungDecision
from unstable.studies.sweep.report import Measure
from unstable.types.metrics import GROUPS, EvalKey, ExploitKey, sampling_mode


@dataclass(frozen=True, slots=True)
class SweepFolder(StudyFolder):
    """A sweep's folder: SweepFolder(Path("outputs/nim")).run("base-seed1") is a run's folder."""

    kind = "sweep"
    below = "runs"
    listed = "trials.jsonl"

    @property
    def report(self) -> Path:
        """The sweep's report page."""
        return self.root / "report.html"

    def read(self) -> SweepConfig:
        """Read the sweep of this folder."""
        return read_sweep(self.text(), str(self.file))

    @property
    def _decisions(self) -> Path:
        return self.root / "decisions.jsonl"

    def decisions(self) -> list[RungDecision]:
        """Return the decisions on rungs so far."""
        return read_list(self._decisions, RungDecision)

    def add_decision(self, decision: RungDecision) -> None:
        """Append a decision to the file."""
        append(self._decisions, decision)


COSTS = ("version", "collect/games", "time/total")
"""Metrics that count for members that are not measured."""


def league_config(setting: Setting, seed: int) -> LeagueConfig:
    """Return the league of a setting; a `ConfigError`'s message begins with `league`."""
    own = {"config": setting.config, "common": setting.fields, "seed": seed}
    text = yaml.safe_dump({**(setting.league or {}), **own}, sort_keys=False)
    return read_league(text, "league")


def measured(config: LeagueConfig) -> str:
    """Return the member that represents a league in comparisons: the first main, else the first."""
    mains = [name for name, member in config.members.items() if member.role == "main"]
    return (mains or [*config.members])[0]


class LeagueJob(NamedTuple):
    """A run of `unstable league` in its folder."""

    folder: LeagueFolder
    config: LeagueConfig

    @property
    def root(self) -> Path:
        return self.folder.root

    def is_over(self) -> bool:
        runs = (self.folder.run(turn.name) for turn in turns(self.config))
        return all(is_over(run, self.config.updates) for run in runs)

    def words(self) -> list[str]:
        if not self.folder.file.is_file():
            shutil.rmtree(self.root, ignore_errors=True)
            self.folder.make(self.config, league_of(self.folder, self.config).lines())
        return ["league", "--resume", str(self.root), "--retry"]

    def state(self) -> str:
        """Return "done", "running" or "waiting"."""
        if self.is_over():
            return "done"
        runs = (self.folder.run(turn.name) for turn in turns(self.config))
        is_running = any(state_of(run, self.config.updates) == "running" for run in runs)
        return "running" if is_running else "waiting"

    def rows(self, skipped: Skipped | None = None) -> list[Row]:
        """Return the measured member's metrics, versions counted on, and the others' `COSTS`."""
        found: list[Row] = []
        for turn in turns(self.config):
            made = self.config.updates * (turn.generation - 1)
            for row in read_rows(self.folder.run(turn.name).metrics, skipped):
                is_measured = turn.member == measured(self.config)
                is_again = made > 0 and row["version"] == 0  # repeats the last generation's end
                own: dict[str, Any] = dict(row)
                if not is_measured or is_again:
                    own = {name: row[name] for name in COSTS if name in row}
                found.append({**own, "version": row["version"] + made})
        return found


class Trial(NamedTuple):
    """A run of a sweep: a setting with a seed. For a league `config` is its measured member's."""

    setting: Setting
    seed: int
    config: RunConfig
    league: LeagueConfig | None = None

    @property
    def name(self) -> str:
        """Name of the run and of its folder."""
        return f"{self.setting.name}-seed{self.seed}"

    @property
    def words(self) -> list[str]:
        """Arguments of `unstable` that start the run, unless it is a league."""
        return train_words(self.setting.config, {**self.setting.fields, "seed": self.seed})

    def command(self, folder: SweepFolder) -> str:
        """Return the command that repeats the run; for a league it names the file in the folder."""
        if self.league is None:
            return command_line("unstable", *self.words)
        file = LeagueFolder(folder.run(self.name).root).file
        return command_line("unstable", "league", file, "--out", f"outputs/{self.name}")

    @property
    def given(self) -> dict[str, Any]:
        """Fields of its setting, for display."""
        league = {} if self.setting.league is None else {"league": self.setting.league}
        return {**self.setting.fields, **league}

    def job(self, folder: SweepFolder) -> TrainJob | LeagueJob:
        """Return the job that makes the run in the sweep's folder."""
        own = folder.run(self.name)
        if self.league is not None:
            return LeagueJob(LeagueFolder(own.root), self.league)
        return TrainJob(own, self.name, self.config.loop.steps, lambda: self.words)

    @property
    def digest(self) -> str:
        """Digest of the whole config, and of the league's if it is one."""
        own = digest(self.config)
        return own if self.league is None else f"{own}-{digest(self.league)}"

    def record(self, folder: SweepFolder) -> dict[str, Any]:
        """Return the trial as a row of `trials.jsonl`."""
        names = {"trial": self.name, "setting": self.setting.name, "seed": self.seed}
        return {**names, "command": self.command(folder), "digest": self.digest}

    def configs(self) -> dict[str, RunConfig]:
        """Return by name the configs that a machine must have room for, one at a time."""
        if self.league is None:
            return {self.setting.name: self.config}
        league = largest(_league(self.league))
        return {f"{self.setting.name}: {name}": config for name, config in league.items()}


class Sweep(NamedTuple):
    """A sweep with automatic choices made, its folder and its trials."""

    folder: SweepFolder
    config: SweepConfig
    trials: list[Trial]

    @property
    def measure(self) -> Measure:
        """Metric and goal that compare settings."""
        assert self.config.metric is not None and self.config.goal is not None, "both are set"
        return Measure(self.config.metric, self.config.goal)

    @property
    def settings(self) -> list[Trial]:
        """One trial per setting, with the first seed."""
        return self.trials[: len(self.trials) // len(self.config.seeds)]

    @property
    def size(self) -> str:
        """Number of runs, settings and seeds, in words."""
        seeds = len(self.config.seeds)
        return f"{len(self.trials)} runs ({len(self.settings)} settings, {seeds} seeds)"


def trials_of(sweep: SweepConfig) -> list[Trial]:
    """Return all settings with the first seed, then with the next: soon each has one run.

    Raises `ConfigError` for a setting that is not a valid config, and for two equal runs.
    """
    settings = sweep.all_settings()
    trials = [_made(each, seed) for seed in sweep.seeds for each in settings]
    seen: dict[str, Trial] = {}
    for trial in trials:
        same = seen.setdefault((trial.league or trial.config).model_dump_json(), trial)
        if same is not trial:
            raise ConfigError(f"{same.name} and {trial.name}: identical runs; remove one")
    return trials


def _made(setting: Setting, seed: int) -> Trial:
    try:
        if setting.league is None:
            return Trial(setting, seed, load(setting.config, {**setting.fields, "seed": seed}))
        league = league_config(setting, seed)
        return Trial(setting, seed, _league(league).bases[measured(league)], league)
    except ConfigError as error:
        raise ConfigError(f"{setting.name}: {error}") from None


def _league(config: LeagueConfig) -> League:
    return league_of(LeagueFolder(Path()), config)


def check_trials(sweep: Sweep) -> None:
    """Raise `ConfigError` for a mistake that would fail a run later or keep it out of the table."""
    stop = sweep.config.stop
    for trial in sweep.settings:  # the checks do not depend on the seed
        try:
            if trial.league is None:
                check(trial.config)
            else:
                check_league(_league(trial.league))
            _check_metric(trial.config, sweep.measure.metric)
        except ConfigError as error:
            raise ConfigError(f"{trial.setting.name}: {error}") from None
        if stop and trial.league is not None:
            raise ConfigError(
                f"stop: conflicts with the league {trial.setting.name}; remove one of them"
            )
        steps = trial.config.loop.steps
        if stop and stop.by == "updates" and stop.rungs[-1] >= steps:
            raise ConfigError(
                f"stop.rungs = {stop.rungs}: {trial.setting.name} makes {steps} updates; "
                f"use rungs below {steps}"
            )


def measure_of(sweep: SweepConfig, config: RunConfig) -> Measure:
    """Return the measure that the sweep names, or else the config's first evaluated metric."""
    metric = sweep.metric
    if metric is None:
        check_games(config)  # before `_keys` inspects the games
        if not (keys := _keys(config)):
            raise ConfigError("metric: these runs have no evaluation; set eval.every or metric")
        metric = _figure(keys[0])
    return Measure(metric, sweep.goal or ("min" if ExploitKey.parse(metric) else "max"))


def _keys(config: RunConfig) -> list[EvalKey | ExploitKey]:
    """Return the keys of all evaluations: scores, then exploitabilities."""
    scores = [
        EvalKey(game.key, opponent, sampling_mode(temperature))
        for game in config.games
        for opponent in (config.eval.opponents if len(game.sides) > 1 else [ALONE])
        for temperature in config.eval.temperature
    ]
    measured = exact_games(config) if config.eval.exploitability.every else []
    return [*(scores if config.eval.every else []), *map(ExploitKey, measured)]


def _figure(key: EvalKey | ExploitKey) -> str:
    return key.name("score" if isinstance(key, EvalKey) else "high")


def _check_metric(config: RunConfig, metric: str) -> None:
    """Raise `ConfigError` for a metric that no run makes, as far as known before a run."""
    group, _, name = metric.partition("/")
    if group not in GROUPS or not name:
        raise ConfigError(
            f"metric = {metric!r}: unknown metric; use one of metrics.jsonl, which start with "
            + ", ".join(f"{each}/" for each in GROUPS)
        )
    if not metric.startswith((f"{EvalKey.prefix}/", f"{ExploitKey.prefix}/")):
        return
    keys = _keys(config)
    parsed = EvalKey.parse(metric) or ExploitKey.parse(metric)
    if parsed is None or parsed[0] not in keys:
        names = ", ".join(map(_figure, keys)) or "none"
        raise ConfigError(f"metric = {metric!r}: not measured by these runs; available: {names}")
