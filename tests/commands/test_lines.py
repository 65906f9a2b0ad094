"""Nobody waits in silence: lines come where nothing else does."""

import re
import time

from unstable.tracking import lines
from unstable.tracking.lines import Lines


def test_what_goes_on_is_said_before_patience_ends() -> None:
    said: list[tuple[float, str]] = []
    made = Lines(lambda line: said.append((time.monotonic(), line)))
    began = time.monotonic()
    with made.refreshing():
        made.phase("evaluating", total=8)
        made.advance()
        time.sleep(made.patience_s)
    ((at, line),) = said
    assert at - began < lines.FIRST_S
    assert re.fullmatch(r"evaluating 1/8 · \d s", line)


def test_what_is_said_anyway_is_enough() -> None:
    said: list[str] = []
    made = Lines(said.append)
    with made.refreshing():
        for number in range(3):
            time.sleep(2)
            made.say(f"line {number}")
    assert said == [f"line {number}" for number in range(3)]


def test_patience_is_short_before_the_first_update() -> None:
    assert lines.FIRST_S <= 5 and lines.LATER_S <= 30
