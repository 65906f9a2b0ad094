"""A report of runs, finished or ending: what it needs of other rooms is put together."""

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
"""What replaying the games of a run may take; those after it have no boards and solutions."""


def report(run_dirs: Sequence[Path], out: Path | None = None) -> None:
    """Write the report of runs and say where it is.

    By default it lies in the run's folder, or as `report.html` in this one where there are several
    runs. Raises `ConfigError` for a folder that is no run's.
    """
    if out is None and len(run_dirs) == 1:
        RunFolder(run_dirs[0]).check_links()
        if RunFolder(run_dirs[0]).tournament.is_file():
            place = str(run_dirs[0])
            again = command_line("unstable", "tournament", "--resume", place)
            raise ConfigError(f"RUN_DIR = {place!r} holds a tournament; for its page: {again}")
    path = out or (RunFolder(run_dirs[0]).report if len(run_dirs) == 1 else SEVERAL)
    if out is not None or len(run_dirs) > 1:
        check_target(path, "--out")
    size = make_report(run_dirs, path, status)
    print(f"report: {path} ({size / 1e6:.1f} MB)")


def make_report(run_dirs: Sequence[Path], out: Path, tell: Callable[[str], None] = status) -> int:
    """Write the report of runs; returns its size in bytes. Errors as above.

    `tell` is given a line on what of their files is damaged.
    """
    return write_report(run_dirs, out, plot_library(cache_folder()), sources, state, tell)


def report_at_end(folder: RunFolder, tell: Callable[[str], None]) -> Path | None:
    """Write the report of a run that ends; returns where.

    What goes wrong is logged and told in a line, is no error, and there is none.
    """
    began = time.monotonic()
    try:
        make_report([folder.root], folder.report, tell)
    except (ConfigError, OSError, ValueError) as error:
        again = command_line("unstable", "report", folder.root)
        line = f"no report was made ({error}); to try again: {again}"
        logger.exception(line)
        tell(one_line(line))
        return None
    logger.info("the report took %.1f s", time.monotonic() - began)
    return folder.report


def state(folder: RunFolder) -> str:
    """How the run ended or what it is at, as `unstable doctor` says; "" without a state.json."""
    status = status_of(folder)
    if not status:
        return ""
    word, why, *_ = condition_of(folder, status, time.time())
    return f"State of the run: {word} ({why})." if why else f"State of the run: {word}."


def sources(config: RunConfig) -> Sources:
    """What this machine knows of a run's games: its tokenizer's texts, positions of known games."""
    decode = load_decoder(config.model)
    return Sources(None if decode is None else TokenStrings(decode), _positions(config))


def _positions(config: RunConfig) -> Callable[[GameResult], list[dict[str, Any]] | None]:
    """Replays a game of the table of games; others may be of any cost, and are not played again."""
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
