"""A user's code that is tried in a process of its own does nothing to this one."""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.helpers.rows import every_row
from unstable.config import ConfigError
from unstable.config.apart import apart


def refused() -> NoReturn:
    raise ConfigError("games.0.env = 'x': no such game; choose another")


def test_what_it_returns_and_refuses_comes_back() -> None:
    assert apart(lambda: {"seats": 2}) == {"seats": 2}
    with pytest.raises(ConfigError, match=r"^games\.0\.env = 'x': no such game; choose another$"):
        apart(refused)


@every_row(
    ("end", "how"),
    [
        (lambda: os._exit(5), "with exit code 5"),
        (lambda: os._exit(0), "with exit code 0"),
        (lambda: sys.exit(3), "with exit code 1"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "by signal 9"),
        (lambda: os.closerange(3, 256), "with exit code 1"),
    ],
)
def test_an_end_of_its_process_is_told_in_one_line(end: object, how: str) -> None:
    with pytest.raises(ConfigError, match=f"ended its process {how} as it was tried; mend it"):
        apart(end)  # type: ignore[arg-type]


def test_what_it_changes_stays_there(tmp_path: Path) -> None:
    before = Path.cwd()
    apart(lambda: os.chdir(tmp_path))
    assert Path.cwd() == before
