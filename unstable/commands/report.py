"""Reports of finished or ending runs, assembled from other rooms."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unstable.commands.diagnosis import condition_of, status_of
from unstable.commands.session import status
from unstable.config import ConfigError, RunConfig, one_line
from unstable.games.replay import is_known, replay
from unstable.models.base import load_decoder
from unstable.models.hub import cache_folder
from unstable.prompts import TokenStrings
from unstable.records.files import check_target
from unstable.records.folder import RunFolder
from unstable.records.text import command_line
from unstable.report.games import Sources
from unstable.report.page import plot_library
from unstable.report.report import write_report
from unstable.types import GameResult

logger = logging.getLogger(__name__)
SEVERAL = Path("report.html")
REPLAY_S = 8.0
"""Seconds for replaying a run's games; games after that have no boards and solutions."""


def report(run_dirs: Sequence[Path], out: Path | None = None) -> None:
    """Write the report of runs and print its path.

    By default the path is in the run's folder, or `report.html` in the current folder for several
    runs. Raises `ConfigError` for a folder that is not a run's.
    """
    if out is None and len(run_dirs) == 1:
        RunFolder(run_dirs[0]).check_links()
        if RunFolder(run_dirs[0]).tournament.is_file():
            place = str(run_dirs[0])
            again = command_line("unstable", "tournament", "--resume", place)
            raise ConfigError(f"RUN_DIR = {place!r} is a tournament; for its report run {again}")
    path = out or (RunFolder(run_dirs[0]).report if len(run_dirs) == 1 else SEVERAL)
    if out is not None or len(run_dirs) > 1:
        check_target(path, "--out")
    size = make_report(run_dirs, path, status)
    print(f"report: {path} ({size / 1e6:.1f} MB)")


def make_report(run_dirs: Sequence[Path], out: Path, tell: Callable[[str], None] = status) -> int:
    """Write the report of runs; return its size in bytes. Raises as `report` does.

    `tell` receives a line on damaged records.
    """
    return write_report(run_dirs, out, plot_library(cache_folder()), sources, state, tell)


def report_at_end(folder: RunFolder, tell: Callable[[str], None]) -> Path | None:
    """Write the report of a run that ends; return its path.

    A failure is logged and passed to `tell` as a line; the function then returns None.
    """
    began = time.monotonic()
    try:
        make_report([folder.root], folder.report, tell)
    except (ConfigError, OSError, ValueError) as error:
        again = command_line("unstable", "report", folder.root)
        line = f"the report failed ({error}); to retry: {again}"
        logger.exception(line)
        tell(one_line(line))
        return None
    logger.info("the report took %.1f s", time.monotonic() - began)
    return folder.report


def state(folder: RunFolder) -> str:
    """Return a sentence on a run's state, as `unstable doctor` reports; "" if unknown."""
    if not (status := status_of(folder)):
        return ""
    word, why, *_ = condition_of(folder, status, time.time())
    return f"State of the run: {word} ({why})." if why else f"State of the run: {word}."


def sources(config: RunConfig) -> Sources:
    """Return this machine's sources for a run's games: tokens' texts, positions of known games."""
    decode = load_decoder(config.model)
    return Sources(None if decode is None else TokenStrings(decode), _positions(config))


def _positions(config: RunConfig) -> Callable[[GameResult], list[dict[str, Any]] | None]:
    """Return a function that replays a game: [] for an unknown game, None once time is up."""
    known = {key: game for key, game in config.game_by_key.items() if is_known(game)}
    spent = 0.0

    def positions(game: GameResult) -> list[dict[str, Any]] | None:
        nonlocal spent
        if game.spec.env not in known:
            return []
        if spent > REPLAY_S:
            return None
        began = time.monotonic()
        actions = [turn.answer.action for turn in game.turns]
        found = replay(known[game.spec.env], game.spec.seed, actions)
        spent += time.monotonic() - began
        return [position._asdict() for position in found]

    return positions
