"""A league as one of a sweep's runs: how it is made, and what its measured member has come to."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from unstable.records.reading import Row, Skipped, read_rows
from unstable.studies.league.config import LeagueConfig, read_league
from unstable.studies.league.members import LeagueFolder, league_of
from unstable.studies.league.population import turns
from unstable.studies.several import is_over, state_of
from unstable.studies.sweep.config import Setting

COSTS = ("version", "collect/games", "time/total")
"""What counts of members that are not measured."""


def league_config(setting: Setting, seed: int) -> LeagueConfig:
    """The league that a setting says; raises `ConfigError`, which begins with `league`."""
    own = {"config": setting.config, "common": setting.fields, "seed": seed}
    text = yaml.safe_dump({**(setting.league or {}), **own}, sort_keys=False)
    return read_league(text, "league")


def measured(config: LeagueConfig) -> str:
    """The member by which a league is compared with other runs: its first main, or else first."""
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
        return ["league", "--resume", str(self.root)]

    def state(self) -> str:
        """Whether it is done, running or waiting."""
        if self.is_over():
            return "done"
        runs = (self.folder.run(turn.name) for turn in turns(self.config))
        is_running = any(state_of(run, self.config.updates) == "running" for run in runs)
        return "running" if is_running else "waiting"

    def rows(self, skipped: Skipped | None = None) -> list[Row]:
        """Metrics of the measured member, its versions counted on, and what all others cost."""
        found: list[Row] = []
        for turn in turns(self.config):
            made = self.config.updates * (turn.generation - 1)
            for row in read_rows(self.folder.run(turn.name).metrics, skipped):
                is_measured = turn.member == measured(self.config)
                is_again = made > 0 and row["version"] == 0  # as the generation before ended
                own: dict[str, Any] = dict(row)
                if not is_measured or is_again:
                    own = {name: row[name] for name in COSTS if name in row}
                found.append({**own, "version": row["version"] + made})
        return found
