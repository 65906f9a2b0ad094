"""Expected duration of a run, printed before the run starts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from unstable.commands.expected import expected_line
from unstable.commands.prepare import Resolved, prepare
from unstable.config import dump, load
from unstable.records.folder import RunFolder


def new_run(root: Path, name: str, rows: list[dict[str, Any]], **changes: Any) -> Resolved:
    """Write a run's folder; return its resolved config."""
    resolved = prepare(load("tiny_nim", {"loop.steps": 20, **changes}))
    folder = RunFolder(root / name)
    folder.root.mkdir()
    folder.config.write_text(dump(resolved.config), encoding="utf-8")
    folder.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return resolved._replace(machine=replace(resolved.machine, gpus=()))


def test_duration_follows_the_newest_run_with_the_same_batches(tmp_path: Path) -> None:
    rows = [
        {"version": version, "time/total": 30.0 if version == 0 else 2.0} for version in range(5)
    ]
    new_run(tmp_path, "other", rows, **{"learner.batch_size": 64})
    (tmp_path / "damaged").mkdir()
    new = new_run(tmp_path, "new", [], **{"seed": 5})
    line = expected_line(new, RunFolder(tmp_path / "new"))
    assert "about" in line and line.endswith("for 20 updates (tiny_nim on two CPU cores)")
    new_run(tmp_path, "same", rows)
    line = expected_line(new, RunFolder(tmp_path / "new"))
    assert line == f"duration about 1 min 10 s for 20 updates (as {tmp_path / 'same'} took)"


def test_duration_of_an_unmeasured_config_is_unknown(tmp_path: Path) -> None:
    new = new_run(tmp_path, "new", [], **{"learner.batch_size": 64})
    assert (
        expected_line(new, RunFolder(tmp_path / "new")) == "duration unknown until update 1 of 20"
    )
