"""Surroundings of a run: its folder, mistakes that remove the folder, signals that end the run."""

import asyncio
import logging
import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.helpers.mistakes import refused
from unstable.commands import session, train
from unstable.config import ConfigError, RunConfig, RunFailedError, parse
from unstable.planning.plan import Plan
from unstable.records import logs
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import in_time


def test_taken_run_folder_gets_a_number(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.time, "strftime", lambda _: "now")
    folders = [session.make_folder(parse({})).root for _ in range(3)]
    name = "smollm2-135m-TicTacToe-v0-random-now"
    assert [folder.name for folder in folders] == [name, f"{name}-2", f"{name}-3"]
    games = [{"env": "TicTacToe-v0", "name": f"{number}{'n' * 60}"} for number in range(9)]
    assert session.make_folder(parse({"games": games})).root.name.endswith("nnn-now")


@pytest.fixture
def config(tiny_folder: Path, tmp_path: Path) -> RunConfig:
    """Return the config of a run in the folder `run`."""
    model = {"name": str(tiny_folder), "init": "fresh"}
    return parse({"model": model, "tracking": {"run_dir": str(tmp_path / "run")}})


@pytest.mark.parametrize("versions", [0, 1])
def test_mistake_removes_a_folder_without_versions(
    versions: int, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(config: RunConfig, plan: Plan, folder: RunFolder, *_: Any) -> str:
        for version in range(versions):
            folder.checkpoint(version).mkdir(parents=True)
        raise ConfigError("an opponent's file is missing")

    monkeypatch.setattr(train, "_train", mistaken)
    refused("an opponent's file", train.train, config)
    assert RunFolder(tmp_path / "run").versions() == list(range(versions))
    assert (tmp_path / "run").exists() == (versions > 0)


def test_failed_tracker_removes_the_folder(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as no login at Weights & Biases, which shows as the tracker is made."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ConfigError("tracking.wandb = 'p': no login")

    monkeypatch.setattr(train, "Tracker", refuse)
    refused("no login", train.train, config)
    assert not (tmp_path / "run").exists()


def test_early_interrupt_removes_the_folder(
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "_train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train.train(config)
    assert not (tmp_path / "run").exists()
    assert "The run ended" not in capsys.readouterr().out


def test_run_restores_logging_of_the_caller(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def loud(*_: Any) -> str:
        logging.getLogger("unstable.commands.train").info("ours")
        logging.getLogger("mine").warning("the caller's")
        raise RuntimeError("on purpose")

    def state() -> dict[str, Any]:
        known = [logging.root, *logging.root.manager.loggerDict.values()]
        loggers = [each for each in known if isinstance(each, logging.Logger)]
        return {e.name: (e.level, e.propagate, e.disabled, [*e.handlers]) for e in loggers}

    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(train, "_train", loud)
    monkeypatch.setattr(logs, "_takes_over", False)  # as another test's command line may have left
    logging.root.addHandler(handler)
    try:
        logging.getLogger("mine")
        before, showwarning = state(), warnings.showwarning
        with pytest.raises(RunFailedError, match="on purpose"):
            train.train(config)
        after = state()
        assert {name: after[name] for name in before} == before
        assert warnings.showwarning is showwarning
    finally:
        logging.root.removeHandler(handler)
    assert heard == ["the caller's"]
    text = RunFolder(tmp_path / "run").log("loop").read_text()
    assert "ours" in text and "on purpose" in text and "the caller's" not in text


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP as at a terminal, though the tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_a_run_cleanly(kind: signal.Signals, hangups: None) -> None:
    """A signal ends a run in order, with or without an event loop, even if SIGINT is ignored."""
    ended: list[str] = []
    said: list[str] = []

    async def run() -> None:
        try:
            os.kill(os.getpid(), kind)
            assert said == [f"{kind.name}: the run stops cleanly; a second signal stops it at once"]
            await asyncio.sleep(20)
        finally:
            ended.append("in order")

    before = signal.getsignal(kind), signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job of a script
        with pytest.raises(session.Terminated), session.ended_by_sigterm():
            session.run_to_end(run(), said.append)
    finally:
        signal.signal(signal.SIGINT, before[1])
    assert ended == ["in order"]
    signal.signal(kind, before[0])
    with pytest.raises(session.Terminated), session.ended_by_sigterm():
        os.kill(os.getpid(), kind)
        time.sleep(20)


def test_repeated_hangups_stop_a_run_cleanly(hangups: None) -> None:
    ended: list[str] = []

    async def run() -> None:
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(20)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
            ended.append("in order")

    with pytest.raises(session.Terminated), session.ended_by_sigterm():
        try:
            session.run_to_end(run())
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            ended.append("to its end")
    assert ended == ["in order", "to its end"]


def test_nohup_ignores_hangups_and_sigterm_handler_is_restored(hangups: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with session.ended_by_sigterm():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    before = signal.getsignal(signal.SIGTERM)
    with session.ended_by_sigterm():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_second_signal_stops_at_once() -> None:
    async def run() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(20)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        session.run_to_end(run())
    assert time.monotonic() - began < 10


async def test_ctrl_c_stops_a_run_in_a_notebook_cleanly() -> None:
    """Ctrl-C ends a run in order if a loop already runs in the main thread, as this test's does."""

    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    ended: list[str] = []

    async def run() -> None:
        try:
            await asyncio.sleep(0.2)  # until the main thread waits
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(20)
        finally:
            ended.append("in order")

    assert session.run_to_end(answer()) == 42
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.run_to_end(run())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["in order"]


@pytest.mark.fault("a process does not start")
async def test_start_timeout_names_the_log(tmp_path: Path) -> None:
    config = parse({"loop": {"start_timeout": 0.01}})
    with pytest.raises(TimeoutError) as error:
        async with in_time(config, "actor-3", RunFolder(tmp_path)):
            await asyncio.sleep(20)
    assert str(error.value) == (
        "actor-3 did not start within loop.start_timeout = 0.01 s; see "
        f"{tmp_path}/logs/actor-3.log, or raise loop.start_timeout"
    )
