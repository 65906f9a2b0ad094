"""What a run ran with: the command that began it, and the versions of packages."""

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

from unstable.config import DISTRIBUTION
from unstable.records.files import json_line, write_whole
from unstable.records.folder import RunFolder
from unstable.records.shapes import EnvironmentRecord

_NAME = re.compile(r"[\w.-]+")


def write_environment(folder: RunFolder, command: str | None) -> None:
    """Write it down, in `environment.json`; `command` None: it was begun from Python."""
    record = EnvironmentRecord(
        command=command,
        python=platform.python_version(),
        platform=platform.platform(),
        packages=installed(),
    )
    write_whole(folder.environment, json_line(record))


def asked_for() -> list[str]:
    """List the requirements of our package; none where it is not installed."""
    try:
        return requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return []


def installed() -> dict[str, str]:
    """The versions of our package and of those that it asks for, as far as they are installed."""
    found = {}
    for line in [DISTRIBUTION, *asked_for()]:
        name = _NAME.match(line)
        assert name is not None
        try:
            found[name[0]] = version(name[0])
        except PackageNotFoundError:
            continue
    return found
