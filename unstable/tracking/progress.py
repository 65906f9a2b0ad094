"""How far a piece of training is: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 20.0
"""Between two lines, where there is no bar."""


@contextmanager
def progress(what: str, steps: int, console: Console | None = None) -> Iterator[Callable]:
    """Yields a function that is called once a step, with that step's loss."""
    console = console or Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    loss_column = TextColumn("loss {task.fields[loss]}")
    bar = Progress(*columns, loss_column, TimeRemainingColumn(), console=console)
    task = bar.add_task(what, total=steps, loss="")
    printed, done = time.monotonic(), 0

    def step(loss: float) -> None:
        nonlocal printed, done
        done += 1
        bar.update(task, advance=1, loss=f"{loss:.3f}")
        if not console.is_terminal and time.monotonic() - printed > LINE_EVERY_S:
            printed = time.monotonic()
            console.print(f"{what}: {done}/{steps} steps, loss {loss:.3f}")

    if not console.is_terminal:
        yield step
        return
    with bar:
        yield step
