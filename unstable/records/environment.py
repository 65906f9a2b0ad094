"""Environment of a run: the command that began it, and the versions of packages."""

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

from unstable.config import DISTRIBUTION
from unstable.records.files import json_line, write_whole
from unstable.records.folder import RunFolder
from unstable.records.shapes import EnvironmentRecord

_NAME = re.compile(r"[\w.-]+")


def write_environment(folder: RunFolder, command: str | None) -> None:
    """Write `environment.json`; `command` is None for a run that was begun from Python."""
    record = EnvironmentRecord(
        command=command,
        python=platform.python_version(),
        platform=platform.platform(),
        packages=installed(),
    )
    write_whole(folder.environment, json_line(record))


def asked_for() -> list[str]:
    """Return the requirements of this package; [] if it is not installed."""
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []


def installed() -> dict[str, str]:
    """Return the versions of this package and of its requirements, if installed, by name."""
    found = {}
    for line in [DISTRIBUTION, *asked_for()]:
        name = _NAME.match(line)
        assert name is not None
        try:
            found[name[0]] = version(name[0])
        except PackageNotFoundError:
            continue
    return found
