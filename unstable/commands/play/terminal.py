"""A person's terminal: text wrapped to its width, and typed lines."""

import asyncio
import os
import shutil
import sys
import threading

from unstable.collectors.players.base import LeftError
from unstable.tracking.text import wrapped

_STDIN = 0
_MOST_BYTES = 65_536  # per read
LEFT = "the person has left"


class Terminal:
    """Standard input and output; control characters of games and models are spelled out."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] | None = None

    def show(self, text: str = "") -> None:
        """Print text, wrapped at the terminal's current width."""
        width = shutil.get_terminal_size().columns
        try:
            print("\n".join(wrapped(text, width)), flush=True)
        except BrokenPipeError:  # the reader ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    async def ask(self, prompt: str) -> str:
        """Return the next line, stripped; raises `LeftError` at the end of the input."""
        if self._lines is None:
            self._lines = asyncio.Queue()
            # This thread must handle signals, so another one waits for lines, which also works for
            # a file or a pipe.
            reading = (asyncio.get_running_loop(), self._lines)
            threading.Thread(target=_read, args=reading, daemon=True).start()
        print(prompt, end="", flush=True)
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
            print()
            raise LeftError(LEFT)
        return line.strip()


def _read(loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[str | None]") -> None:
    """Put each line of the input into the queue, and None at its end.

    It reads the descriptor: a thread that waits in `sys.stdin` would hold a lock that Python needs
    to exit.
    """
    rest = b""
    try:
        while content := _content():
            *whole, rest = (rest + content).split(b"\n")
            for line in whole:
                loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))
        if rest:
            loop.call_soon_threadsafe(lines.put_nowait, rest.decode(errors="replace"))
        loop.call_soon_threadsafe(lines.put_nowait, None)
    except RuntimeError:  # the loop is closed
        return


def _content() -> bytes:
    try:
        return os.read(_STDIN, _MOST_BYTES)
    except OSError:  # the terminal is closed
        return b""
