"""Records `unstable` in a terminal as an animated SVG, sped up to a given length.

The picture loops in browsers; viewers without animation show the last frame.
"""

import shlex
from collections import defaultdict
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

from tests.helpers.screens import Screen

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


def recorded(words: list[str], every_s: float, most: int) -> list[Frame]:
    """Run `unstable` with these arguments; return `most` frames at most, evenly spaced in time."""
    frames = [frozenset({Run(0, 0, f"$ unstable {shlex.join(words)}", "default", False)})]
    with Screen(Path.cwd(), COLUMNS, ROWS, *words) as terminal:
        while terminal.process.poll() is None:
            terminal.watch(every_s)
            frames.append(frame(terminal.screen))
        terminal.end()
        frames.append(frame(terminal.screen))
    if len(frames) <= most:
        return frames
    return [frames[round(at * (len(frames) - 1) / (most - 1))] for at in range(most)]


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
