"""Logs of a run are bounded, even if several processes write to them."""

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unstable.records import logs
from unstable.records.folder import RunFolder
from unstable.records.logs import LOG_BYTES, OLDER_FILES, LogFile, logging_to

SMALL = 1000
log = logging.getLogger("unstable.tests")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", SMALL)


def written(folder: RunFolder, component: str = "loop") -> list[str]:
    """Return the last word of each logged line, oldest first; assert that no file is too long."""
    path = folder.log(component)
    files = [path.with_name(f"{path.name}.{n}") for n in range(OLDER_FILES, 0, -1)] + [path]
    assert sorted(path.parent.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= SMALL for file in files)
    return [line.split()[-1] for file in files for line in file.read_text().splitlines()]


def test_a_log_keeps_its_newest_lines(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with logging_to(folder, "loop"):
        for number in range(300):
            log.info("line %d", number)
    kept = written(folder)
    assert kept == [str(number) for number in range(300 - len(kept), 300)]
    assert len(kept) > OLDER_FILES * SMALL / 100
    assert LOG_BYTES >= 10_000_000


def test_two_processes_share_one_log_file(tmp_path: Path) -> None:
    files = [
        LogFile(tmp_path / "logs", maxBytes=SMALL, backupCount=OLDER_FILES, delay=False)
        for _ in range(2)
    ]
    paths = [tmp_path / name for name in ("logs.2", "logs.1", "logs")]
    for number in range(300):
        record = logging.makeLogRecord({"msg": f"line {number}", "levelno": logging.INFO})
        files[number % 7 == 0].emit(record)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * SMALL + 20
    for file in files:
        file.close()
    kept = [int(line.split()[1]) for path in paths for line in path.read_text().splitlines()]
    assert sorted(kept) == list(range(300 - len(kept), 300))


def test_log_without_folder_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "run")
    with logging_to(folder, "loop"):
        log.info("before")
        shutil.rmtree(folder.root)
        for number in range(300):
            log.info("line %d", number)
    assert capsys.readouterr() == ("", "")
    assert not folder.root.exists()


def test_import_warnings_stay_off_the_terminal() -> None:
    code = """
import logging
from unstable.records.logs import take_over

take_over()
for name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(name).warning("noise of %s", name)
logging.getLogger("another").warning("heard")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "heard\n")
