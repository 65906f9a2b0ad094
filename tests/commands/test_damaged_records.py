"""Readers of a run's damaged files leave out the damage, report it, and end in order."""

import io
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import unstable
from tests.helpers.tracking import make_config, make_exploitability, make_tracker, run_updates
from unstable.commands.audit.replay import audit
from unstable.commands.diagnosis import diagnose
from unstable.commands.play.found import find
from unstable.commands.report import _positions, state
from unstable.commands.runs import runs
from unstable.commands.watch import Watched
from unstable.config import ConfigError, dump
from unstable.prompts import TokenStrings
from unstable.records.environment import write_environment
from unstable.records.folder import RunFolder
from unstable.records.games import read_games
from unstable.records.reading import Skipped, read_rows
from unstable.records.scan import scan_games
from unstable.report.games import Sources
from unstable.report.report import write_report
from unstable.tracking.dashboard import Dashboard
from unstable.tracking.summary import summary

pytestmark = pytest.mark.filterwarnings("ignore:damaged records")
GONE = object()
VALUES: list[Any] = [
    *(None, True, -1, 0, 99, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, -1e308, math.nan, math.inf),
    *("", "text", "main@7", "\ud800", "\x1b[31m", [], [None], [[0, 0]], {}, {"a": None}, GONE),
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Two updates with all that a run records, made without a model."""
    root = tmp_path_factory.mktemp("recorded") / "run"
    root.mkdir()
    config = make_config(opponents={"fixed": [{"kind": "random"}]})
    (root / "config.yaml").write_text(dump(config))
    write_environment(RunFolder(root), "unstable train")
    tracker = run_updates(make_tracker(root, config, device="two cores"))
    tracker.log_exploitability(make_exploitability(2, 0.25, 0.5))
    tracker.end_update(3)
    with tracker.refreshing():
        pass
    tracker.close()
    return RunFolder(root)


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in a record, the record's own place first."""
    yield before
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value[:2])
    for key, each in items:
        yield from places(each, (*before, key))


def changed(record: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The record with another value there."""
    if not place:
        return {} if value is GONE else value
    copy = dict(record) if isinstance(record, dict) else list(record)
    if len(place) == 1 and value is GONE:
        del copy[place[0]]
    else:
        copy[place[0]] = changed(copy[place[0]], place[1:], value)
    return copy


def report(folder: RunFolder) -> None:
    tokens = TokenStrings(lambda ids: "".join(chr(97 + each % 26) for each in ids))
    out = folder.root / "page.html"
    write_report([folder.root], out, "", lambda config: Sources(tokens, _positions(config)), state)


def replay(folder: RunFolder) -> None:
    for place, game in list(scan_games(folder))[:3]:
        audit(find(folder.root, game.spec.game_id, place.file.purpose, place.file.version))


def watch(folder: RunFolder) -> None:
    view = Watched(folder).view
    for width, height in ((40, 12), (80, 24), (200, 60)):
        console = Console(width=width, height=height, file=io.StringIO())
        console.print(Dashboard(view), height=height)


def frames(folder: RunFolder) -> None:
    data = unstable.read(folder, "pandas")
    assert [len(data.metrics), len(data.games), len(data.turns)]


def resume(folder: RunFolder) -> None:
    skipped = Skipped()
    for file in folder.game_files():
        list(read_games(file.path, skipped))
    make_tracker(folder.root).close()


def shown(folder: RunFolder) -> None:
    Console(file=io.StringIO()).print(summary(folder, "all updates made", reported=True))


def listed(folder: RunFolder) -> None:
    runs(folder.root.parent)


def diagnosed(folder: RunFolder) -> None:
    diagnose(folder.root)


Reader = Callable[[RunFolder], None]
READERS: dict[str, list[Reader]] = {
    "metrics.jsonl": [report, watch, frames, resume, shown, listed],
    "games": [report, replay, frames, resume],
    "train": [report, frames],
    "ratings.json": [shown],
    "environment.json": [report],
    "state.json": [report, watch, diagnosed, listed],
}


def files(folder: RunFolder) -> list[Path]:
    found = [folder.root / name for name in READERS if (folder.root / name).is_file()]
    return found + [f.path for f in folder.game_files()] + [p for _, p in folder.sample_files()]


def read_all(folder: RunFolder, paths: Iterable[Path]) -> None:
    """By all who read one of these files; a `ConfigError` is one line, any other error a defect."""
    parts = [path.relative_to(folder.root).parts[0] for path in paths]
    for reader in dict.fromkeys(reader for part in parts for reader in READERS[part]):
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            try:
                reader(folder)
            except ConfigError as error:
                assert "\n" not in str(error)
        assert "Traceback" not in said.getvalue()


def damage(path: Path, data: st.DataObject) -> None:
    """Change one value of one record, or cut a record short."""
    lines = path.read_bytes().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    record = json.loads(lines[at])
    place = data.draw(st.sampled_from(list(places(record))))
    value = data.draw(st.sampled_from(VALUES))
    if place or value is not GONE:
        text = json.dumps(changed(record, place, value), separators=(",", ":")).encode()
    else:
        text = lines[at][: data.draw(st.integers(0, len(lines[at]) - 1))]
    path.write_bytes(b"".join(line + b"\n" for line in [*lines[:at], text, *lines[at + 1 :]]))


def read_damaged(recorded: RunFolder, root: Path, number: int, data: st.DataObject) -> None:
    """Damage that many files of a copy of the run, and read the copy."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(recorded.root, root)
    folder = RunFolder(root)
    drawn = st.lists(st.sampled_from(files(folder)), min_size=number, max_size=number, unique=True)
    paths = data.draw(drawn)
    for path in paths:
        damage(path, data)
    read_all(folder, paths)


UNHURRIED = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@settings(UNHURRIED, max_examples=15)
@given(data=st.data())
def test_damage_raises_no_traceback(
    recorded: RunFolder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    read_damaged(recorded, tmp_path_factory.getbasetemp() / "damaged/run", 1, data)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=20)
@given(data=st.data())
def test_damage_of_any_field_raises_no_traceback(
    recorded: RunFolder, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    read_damaged(recorded, tmp_path_factory.getbasetemp() / "damaged_more/run", 4, data)


def test_undamaged_run_is_read_completely(recorded: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(recorded.root, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    read_all(folder, files(folder))
    skipped = Skipped()
    assert len(read_rows(folder.metrics, skipped)) == 4
    assert len(list(scan_games(folder, skipped))) == 4
    assert not skipped and skipped.line == ""
