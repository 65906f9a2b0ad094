"""The drivers that a run starts itself: a process each, begun anew where it ends."""

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from unstable.drivers import TOKEN
from unstable.serving.tables import Posted, Tables

log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LAST_LINES = 20
_END_S = 5.0


class DriverProcess:
    """`python -m unstable.drivers` for a target; the games that it leaves behind have failed."""

    def __init__(
        self,
        target: str,
        args: Mapping[str, Any],
        tables: Tables,
        url: str,
        token: str,
        at_once: int,
    ) -> None:
        self._target, self._tables = target, tables
        self._command = [sys.executable, "-m", "unstable.drivers"]
        self._command += [target, url, str(at_once), json.dumps(dict(args))]
        self._environment = os.environ | {TOKEN: token}
        self._process: asyncio.subprocess.Process | None = None
        self._task = asyncio.create_task(self._keep(), name=f"driver {target}")

    @property
    def pid(self) -> int | None:
        """Of the process, once it has begun."""
        return None if self._process is None else self._process.pid

    async def _keep(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            begun = asyncio.get_running_loop().time()
            why = await self._run()
            log.warning("the driver %s has ended: %s", self._target, why)
            for table in self._tables.taken_by(f"driver {self._target}"):
                if not table.posted.done():
                    table.posted.set_result(Posted(error=f"its driver has ended: {why}"))
            if asyncio.get_running_loop().time() - begun > _LONGEST_PAUSE_S:
                pause = _FIRST_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _run(self) -> str:
        """Run it to its end; returns how that came, by its exit code and last line."""
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
        )
        assert process.stdout is not None
        lines: deque[str] = deque(maxlen=_LAST_LINES)
        try:
            async for line in process.stdout:
                lines.append(line.decode(errors="replace").rstrip()[:500])
                log.info("driver %s: %s", self._target, lines[-1])
            code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return f"exit code {code}; {lines[-1] if lines else 'it said nothing'}"

    async def close(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.wait([self._task], timeout=_END_S)
