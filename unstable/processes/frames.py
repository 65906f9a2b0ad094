"""Frames: pickled values over a socket between a process and a module that it has started."""

import asyncio
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_LENGTH = struct.Struct("!I")


def frame(value: object) -> bytes:
    """Encode a value for the other process."""
    content = pickle.dumps(value)
    return _LENGTH.pack(len(content)) + content


def read_frame(read: Callable[[int], bytes]) -> Any:
    """Decode the next value; `read` returns the given number of bytes."""
    return pickle.loads(read(_LENGTH.unpack(read(_LENGTH.size))[0]))


async def receive_frame(reader: asyncio.StreamReader) -> Any:
    """Decode the next value; raises `IncompleteReadError` or `ConnectionError` at the end."""
    size = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
    return pickle.loads(await reader.readexactly(size))


def start_module(module: str, *arguments: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """Run a module as a process, connected to the returned socket; its descriptor is argument 1.

    The process has this process's import path and its own session, without a terminal.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    return ours, process
