"""The drivers that a run starts itself: one process per driver, restarted when it ends."""

import asyncio
import contextlib
import json
import logging
import os
import sys

from unstable.config import GameConfig
from unstable.drivers import TOKEN
from unstable.serving.tables import HostedGames, Posted

log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_MOST_IN_VAIN = 3  # consecutive starts without a game taken, after which waiting games fail
_KEPT = 8192  # bytes of the latest output
_MOST_REASON = 300  # characters
_END_S = 5.0


class DriverProcess:
    """A process `python -m unstable.drivers` for a game; games that it leaves unfinished fail."""

    def __init__(
        self, game: GameConfig, tables: HostedGames, url: str, token: str, at_once: int
    ) -> None:
        self._game, self._tables = game, tables
        self._command = [sys.executable, "-m", "unstable.drivers", f"{game.driver}"]
        self._command += [url, str(at_once), json.dumps(dict(game.args)), game.key]
        self._environment = os.environ | {TOKEN: token}
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._keep(), name=f"driver of {game.key}")

    async def _keep(self) -> None:
        pause, in_vain = _FIRST_PAUSE_S, 0
        while True:
            why = await self._run()
            log.warning("the driver of %s exited with %s; restarting it", self._game.key, why)
            tables = self._tables.of(self._game.key)
            in_vain = 0 if any(table.taken.is_set() for table in tables) else in_vain + 1
            for table in tables:
                if not table.posted.done() and (table.taken.is_set() or in_vain >= _MOST_IN_VAIN):
                    table.posted.set_result(Posted(error=f"its game driver exited with {why}"))
            pause = _FIRST_PAUSE_S if in_vain == 0 else min(2 * pause, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause)

    async def _run(self) -> str:
        """Run the process to its end; returns the reason, with its exit code and last line."""
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
        )
        assert process.stdout is not None
        said = ""
        try:
            while part := await process.stdout.read(_KEPT):
                text = part.decode(errors="replace")
                log.info("driver of %s: %s", self._game.key, text.rstrip())
                said = (said + text)[-_KEPT:]
            code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
        lines = said.strip().splitlines() or ["no output"]
        return f"exit code {code}; {lines[-1].strip()[:_MOST_REASON]}"

    async def close(self) -> None:
        """End the process."""
        self._task.cancel()
        await asyncio.wait([self._task], timeout=_END_S)
