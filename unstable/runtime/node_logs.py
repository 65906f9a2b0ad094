"""What processes of other nodes log, brought into the run's folder."""

import asyncio
import logging
import os

from ray.exceptions import RayError

from unstable.records.folder import RunFolder
from unstable.records.logs import LOG_BYTES
from unstable.runtime.nodes import Node

log = logging.getLogger(__name__)
WAIT_S = 5.0


async def collect_logs(node: Node, folder: RunFolder) -> None:
    """Append what was logged at a node since the last time; a node that has gone says nothing."""
    try:
        async with asyncio.timeout(WAIT_S):
            found = await node.agent.logs.remote()
    except (RayError, TimeoutError) as error:
        log.debug("no logs from %s: %s", node.name, error)
        return
    for name, text in found.items():
        _append(folder, name, text)


def _append(folder: RunFolder, name: str, text: bytes) -> None:
    """Append to a log, which is begun anew where it is full; a full disk costs the text alone."""
    path = folder.log(name.removesuffix(".log"))
    try:
        path.parent.mkdir(exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES:
            os.replace(path, path.with_name(f"{path.name}.1"))
        with path.open("ab") as file:
            file.write(text)
    except OSError as error:
        log.warning("%s could not be written: %s", path, error)
