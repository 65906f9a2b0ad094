"""Instant runs in place of child processes."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from unstable.cli import SHORT_FORMS, parse_options
from unstable.records.files import LineFile, write_whole
from unstable.records.folder import RunFolder
from unstable.studies.league.members import LeagueFolder, Runner, league_of

METRIC = "collect/reward"


class FakeRun:
    """A fake `unstable train` that makes an update each time its `exit_code` is read."""

    fails: ClassVar[dict[str, int]] = {}  # version to fail before, by run
    begun: ClassVar[list[str]] = []
    commands: ClassVar[dict[str, dict[str, Any]]] = {}  # options, by run
    killed_at: ClassVar[int | None] = None  # polls until the whole sweep is killed
    signal_at: ClassVar[int | None] = None  # polls until Ctrl-C
    looks: ClassVar[int] = 0

    def __init__(
        self, words: Sequence[str], log: Path, cores: Sequence[int], own: Mapping[str, str]
    ) -> None:
        self._code: int | None = None
        self._asked = False
        options = parse_options(words[1:], SHORT_FORMS)
        self._folder = RunFolder(Path(options.get("resume") or options["tracking.run_dir"]))
        self._name = log.stem
        FakeRun.begun.append(self._name)
        log.write_text("starting\nerror: no space left\n\n")
        if "resume" not in options:
            FakeRun.commands[self._name] = options
            self._folder.root.mkdir(parents=True)
            content = {"learner": {"state": options.get("learner.state")}}
            self._folder.config.write_text(json.dumps(content))
        self._steps = FakeRun.commands[self._name]["loop.steps"]

    @property
    def exit_code(self) -> int | None:
        FakeRun.looks += 1
        if FakeRun.looks == FakeRun.killed_at:
            raise SystemError("killed")
        if FakeRun.looks == FakeRun.signal_at:
            os.kill(os.getpid(), signal.SIGINT)
        if self._code is None:
            self._step()
        return self._code

    def _step(self) -> None:
        version = max(self._folder.versions(), default=-1) + 1
        if self.fails.get(self._name) == version:
            self._code = 1
            return
        seed = sum(map(ord, self._name)) * 7919 + version * 104_729
        metrics = LineFile(self._folder.metrics)
        metrics.write({"version": version, METRIC: seed % 1000 / 1000, "collect/games": 10})
        metrics.close()
        self._folder.checkpoint(version).mkdir(parents=True)
        self._folder.state(version).write_text("{}")
        if version == self._steps:
            write_whole(self._folder.status, json.dumps({"state": "ended"}).encode())
            self._code = 0
        elif self._asked:  # finishes its update first
            self._code = 130

    def send(self, number: signal.Signals) -> None:
        self._asked = True


class FakeLeague:
    """A fake `unstable league --resume`, whose runs are fake too."""

    def __init__(self, words: Sequence[str]) -> None:
        assert words[:2] == ["league", "--resume"]
        self._folder = LeagueFolder(Path(words[2]))

    @property
    def exit_code(self) -> int:
        config = self._folder.read()
        Runner(league_of(self._folder, config), [None]).run()
        return 0

    def send(self, number: signal.Signals) -> None:
        """Ignore the signal: the league ends as `exit_code` is first read, or with the sweep."""


def fake_child(
    words: Sequence[str], log: Path, cores: Sequence[int], own: Mapping[str, str]
) -> FakeRun | FakeLeague:
    """Replacement for a child process of `unstable`."""
    return FakeLeague(words) if words[0] == "league" else FakeRun(words, log, cores, own)
