"""Records a command in a terminal as an animated SVG, sped up to a given length.

    .venv/bin/python -m scripts.recording docs/recording.svg "unstable train --config tiny_nim"

The picture loops in browsers; viewers without animation show the last frame.
"""

import argparse
import os
import pty
import select
import shlex
import struct
import subprocess
import termios
import time
from collections import defaultdict
from fcntl import ioctl
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

COLUMNS, ROWS = 120, 36
WIDE, HIGH = 8.4, 18.0
"""Pixels of a character."""
COLORS = {
    "default": "#d0d0d0",
    "black": "#707070",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#ffffff",
}


class Run(NamedTuple):
    """Characters of one style in a row."""

    row: int
    column: int
    text: str
    color: str
    bold: bool


Frame = frozenset[Run]


def recorded(words: list[str], every_s: float) -> list[Frame]:
    """Run a command in a new terminal; return its screen at intervals of `every_s` seconds."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    stream.feed(f"$ {shlex.join(words)}\r\n".encode())
    frames = [frame(screen)]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    due = time.monotonic()
    while process.poll() is None:
        if select.select([ours], [], [], 0.1)[0]:
            stream.feed(os.read(ours, 65536))
        if time.monotonic() >= due:
            frames.append(frame(screen))
            due += every_s
    while select.select([ours], [], [], 0.2)[0]:
        stream.feed(os.read(ours, 65536))
    return [*frames, frame(screen)]


def frame(screen: pyte.Screen) -> Frame:
    """Return what a terminal shows, without blanks."""
    runs = []
    for row in range(ROWS):
        column = 0
        cells = (screen.buffer[row][place] for place in range(COLUMNS))
        for (color, bold), found in groupby(cells, lambda cell: (cell.fg, cell.bold)):
            text = "".join(cell.data for cell in found)
            start = column + len(text) - len(text.lstrip())
            if text.strip():
                runs.append(Run(row, start, text.strip(), color, bold))
            column += len(text)
    return frozenset(runs)


def animated(frames: list[Frame], seconds: float) -> str:
    """Return frames, each shown equally long, as an SVG; what frames share is written once."""
    shown = defaultdict[Run, list[bool]](lambda: [False] * len(frames))
    for index, each in enumerate(frames):
        for run in each:
            shown[run][index] = True
    width, height = COLUMNS * WIDE + 20, ROWS * HIGH + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">',
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#16181d"/>',
        '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">',
        *(element(run, when, seconds) for run, when in shown.items()),
        "</g></svg>\n",
    ]
    return "\n".join(parts)


def element(run: Run, when: list[bool], seconds: float) -> str:
    """Return a text that is visible in some frames."""
    color = COLORS.get(run.color.removeprefix("bright"), f"#{run.color}")
    x, y = 10 + run.column * WIDE, 10 + (run.row + 0.8) * HIGH
    style = f'fill="{color}"' + (' font-weight="bold"' if run.bold else "")
    fit = f'textLength="{len(run.text) * WIDE:g}" xml:space="preserve"'
    state = "" if when[-1] else ' visibility="hidden"'
    start = f'<text x="{x:g}" y="{y:g}" {fit} {style}{state}>{escape(run.text)}'
    if all(when):
        return f"{start}</text>"
    changes = [at for at in range(len(when)) if at == 0 or when[at] != when[at - 1]]
    values = ";".join("visible" if when[at] else "hidden" for at in changes)
    times = ";".join(f"{at / len(when):.4g}" for at in changes)
    return (
        f'{start}<animate attributeName="visibility" calcMode="discrete" dur="{seconds:g}s" '
        f'repeatCount="indefinite" values="{values}" keyTimes="{times}"/></text>'
    )


def sampled(frames: list[Frame], most: int) -> list[Frame]:
    """Return at most `most` frames, evenly spaced, with the first and the last."""
    if len(frames) <= most:
        return frames
    return [frames[round(at * (len(frames) - 1) / (most - 1))] for at in range(most)]


def main() -> None:
    """Record a command and write its picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("command")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the picture")
    parser.add_argument("--frames", type=int, default=40, help="most of them")
    given = parser.parse_args()
    frames = sampled(recorded(shlex.split(given.command), 0.5), given.frames)
    given.out.write_text(animated(frames, given.seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
