"""Seconds of each test, set-up and teardown included, for the report of `.ci/run`."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

VARIABLE = "UNSTABLE_DURATIONS"
"""Environment variable with the path of the JSON lines file to append to."""


class Durations:
    """A pytest plugin that adds up the phases of each test and appends them to a file.

    It writes a test's line at its teardown, so that the file of a killed run has all finished
    tests.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.when == "teardown":
            seconds = round(self._seconds.pop(report.nodeid), 3)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": report.nodeid, "seconds": seconds}) + "\n")


def register(config: pytest.Config) -> None:
    """Record durations if the environment variable is set, only in xdist's controller."""
    if (path := os.environ.get(VARIABLE)) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Durations(Path(path)))
