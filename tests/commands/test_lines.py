"""Nobody waits in silence: lines come where nothing else does."""

import re
import threading
from types import SimpleNamespace

import pytest

from unstable.tracking import lines
from unstable.tracking.lines import Lines


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The lines' clock, which stands still until it is set."""
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(lines, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def looks(made: Lines, clock: SimpleNamespace, until: float) -> None:
    """Do the thread's work, by the clock, up to `until`."""
    while clock.now + lines._LOOK_S <= until:
        clock.now += lines._LOOK_S
        made._keep_up()


def test_progress_line_appears_only_after_silence(clock: SimpleNamespace) -> None:
    said: list[str] = []
    made = Lines(said.append)
    made.phase("evaluating", total=8)
    made.advance()
    looks(made, clock, until=made.patience_s - lines._LOOK_S)
    (line,) = said
    assert re.fullmatch(r"evaluating 1/8 · \d s", line)
    said.clear()
    made = Lines(said.append)
    for number in range(3):
        looks(made, clock, until=clock.now + 2)
        made.say(f"line {number}")
    assert said == [f"line {number}" for number in range(3)]


def test_progress_line_appears_while_the_caller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_LOOK_S", 0.01)
    said = threading.Event()
    made = Lines(lambda _: said.set())
    made.patience_s = 0.1
    with made.refreshing():
        assert said.wait(60)
    assert lines.FIRST_S <= 5 and lines.LATER_S <= 30
