"""A thread that watches an event loop and finds the game that blocks it.

An env that sleeps or a bot that computes for long blocks all games of its actor, and nothing in the
loop can end it. The thread requests a sign of life from the loop twice a second. If none comes and
a game is running, the game's env is isolated from then on; if none comes for `games.turn_timeout`,
the process has to end.
"""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from unstable.collectors.players import programs, python
from unstable.games import game
from unstable.types import GameSpec

log = logging.getLogger(__name__)
INTERVAL_S = 0.5
BLOCKED_S = 2.0
"""Seconds without a sign of life, after which a loop counts as blocked."""
_PREFIX = "a game of "
_GAMES = Path(game.__file__).parent
_BOTS = {Path(python.__file__), Path(programs.__file__)}


def task_name(spec: GameSpec) -> str:
    """Return the name of a task that plays a game, by which the watch identifies it."""
    return f"{_PREFIX}{spec.env}"


class LoopWatch:
    """A watch of the running loop until `close`.

    The watching thread calls `blocked(env)` once each time that a game of an env has blocked the
    loop, and `stuck(env)` if it blocks for `limit(env)` seconds. Time counts only while the thread
    itself runs, so a busy machine causes no alarm.
    """

    def __init__(
        self,
        limit: Callable[[str], float],
        blocked: Callable[[str], None],
        stuck: Callable[[str], None],
    ) -> None:
        self._limit, self._blocked, self._stuck = limit, blocked, stuck
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._alive = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        seconds, known = 0.0, False
        while not self._closed.wait(INTERVAL_S):
            if self._alive:
                self._alive, seconds, known = False, 0.0, False
                try:
                    self._loop.call_soon_threadsafe(self._live)
                except RuntimeError:  # the loop is closed
                    return
                continue
            env = self._env()
            if env is None:
                continue
            seconds += INTERVAL_S
            if not known and seconds >= min(BLOCKED_S, self._limit(env)):
                known = True
                log.warning(
                    "a game of %s blocks its actor's event loop; from now on its games run in "
                    "separate processes (games.isolated: true), unless a listed opponent copies "
                    "them; stack of the blocking code:\n%s",
                    env,
                    self._place(),
                )
                self._blocked(env)
            if seconds >= self._limit(env):
                log.error("a game of %s hangs; stack:\n%s", env, self._place())
                self._stuck(env)
                seconds = 0.0

    def _live(self) -> None:
        self._alive = True

    def _env(self) -> str | None:
        """Return the env of the game whose own code, or bot, the loop is running; None otherwise.

        Clients of endpoints, and engines, also run in a game's task, but are not the game's fault.
        """
        task = asyncio.current_task(self._loop)
        name = "" if task is None else task.get_name()
        files = (Path(frame.f_code.co_filename) for frame, _ in traceback.walk_stack(self._frame()))
        is_game = name.startswith(_PREFIX) and any(map(_runs_a_game, files))
        return name.removeprefix(_PREFIX) if is_game else None

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._loop_thread)

    def _place(self) -> str:
        frame = self._frame()
        return "".join(traceback.format_stack(frame)) if frame is not None else ""


def _runs_a_game(file: Path) -> bool:
    """Return whether a file of ours calls an env or a user's bot."""
    return file.parent == _GAMES or file in _BOTS
