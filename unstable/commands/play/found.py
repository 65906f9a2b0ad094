"""Lookup of a recorded game of a run."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from unstable.commands.finished import Version, checkpoint_of
from unstable.commands.session import status
from unstable.config import ConfigError, GameConfig, RunConfig, load, nearest
from unstable.games.check import check_env
from unstable.records.folder import RunFolder, existing_run
from unstable.records.reading import DamagedError, Skipped
from unstable.records.scan import GameLocation, read_game_at, scan_games
from unstable.types import RecordedGame


class FoundGame(NamedTuple):
    """A recorded game, with the run's folder and config."""

    folder: RunFolder
    config: RunConfig
    result: RecordedGame

    @property
    def game(self) -> GameConfig:
        """Config of the game."""
        return self.config.game_by_key[self.result.spec.env]

    @property
    def title(self) -> str:
        """Purpose, number, version, env and players of the game in one line."""
        spec = self.result.spec
        kind = {"eval": "evaluation", "train": "training"}[spec.purpose]
        players = ", ".join(seat.player.name for seat in spec.seats)
        return f"{kind} game {spec.game_id} of version {self.result.version}: {spec.env}, {players}"


def find(root: Path, game: int, purpose: str | None, version: Version | None) -> FoundGame:
    """Return a run's game of that number; without a purpose its training game if there is one.

    Evaluations of several versions share numbers. Raises `ConfigError` if no game matches, or more
    than one.
    """
    folder = existing_run(root)
    place = f"RUN_DIR = {str(folder.root)!r}"
    if purpose not in (None, "train", "eval"):
        raise ConfigError(f"--purpose = {purpose!r}: unknown; use train or eval")
    if version == "best":
        version = checkpoint_of(folder, version)
    skipped = Skipped()
    places = [
        each
        for each, _ in scan_games(folder, skipped)
        if purpose in (None, each.file.purpose) and version in (None, each.file.version)
    ]
    if skipped:
        status(skipped.line)
    if not places:
        if purpose is None and version is None:
            raise ConfigError(f"{place} has no recorded games; give a run that has some")
        options = {"--purpose": purpose, "--version": version}
        given = ", ".join(
            f"{name} = {value}" for name, value in options.items() if value is not None
        )
        raise ConfigError(f"{given}: no such games in {place}; leave the filters out")
    meant = [each for each in places if each.game == game]
    if purpose is None:
        meant = [each for each in meant if each.file.purpose == "train"] or meant
    if len(meant) != 1:
        numbers = [place.game for place in places]
        known = f"use a number from {min(numbers)} to {max(numbers)}"
        why = _several(meant) if meant else f"not recorded; {known}"
        raise ConfigError(f"GAME = {game}: {why}")
    config = load(str(folder.config))
    try:
        result = read_game_at(meant[0])
    except DamagedError as error:
        where = f"{meant[0].file.path}, byte {meant[0].offset}"
        raise ConfigError(f"GAME = {game}: damaged record ({where}: {error})") from None
    if result.spec.env not in config.game_by_key:
        hint = nearest(result.spec.env, list(config.game_by_key))
        raise ConfigError(f"{folder.config}: game {result.spec.env!r} not found; {hint}")
    found = FoundGame(folder, config, result)
    check_env(found.game, "games", "its record is in the report: unstable report RUN_DIR")
    return found


def _several(places: list[GameLocation]) -> str:
    versions = defaultdict(list)
    for place in places:
        versions[place.file.purpose].append(str(place.file.version))
    listed = "; ".join(f"{kind} of version {', '.join(of)}" for kind, of in versions.items())
    return f"{len(places)} games have this number ({listed}); add --purpose or --version"
