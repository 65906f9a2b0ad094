"""`bench.gpu_hour` resumes where it stopped, ends in time, and loses only one step to a crash.

The doctor runs in `test_benches.py`; one learner step runs here, small and without a GPU.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_hour
from bench.gpu_hour import Results, hour
from bench.hour.job import Job
from bench.hour.steps import STEPS, Step
from tests.helpers.machines import machine

CODE = {
    "good": "note(speed=[41000.0, 'tokens/s', '≥ 40,000'])",
    "crashes": "note(speed=[1.0, 'x', '']); raise ValueError('out of | memory')",
    "hangs": "import time; time.sleep(600)",
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Replace the steps with two of `CODE` and one that needs a GPU and vLLM, absent here."""
    made = [Step("good", 30, ""), Step("crashes", 30, ""), Step("card", 9, "", ("card", "vllm"))]

    def command(job: Mapping[str, Any]) -> list[str]:
        note = f"open({job['notes']!r}, 'w').write(json.dumps({{'figures': found}}))"
        code = f"import json\ndef note(**found): {note}\n{CODE[job['step']]}"
        return [sys.executable, "-c", code]

    monkeypatch.setattr(gpu_hour, "STEPS", made)
    monkeypatch.setattr(gpu_hour, "command", command)
    monkeypatch.setattr(gpu_hour, "this_machine", lambda: machine())
    return made


def outcomes(results: Results) -> dict[str, str]:
    return {name: result["outcome"] for name, result in results.items()}


def test_crash_fails_only_its_step(steps: list[Step], tmp_path: Path) -> None:
    results = hour(300, tmp_path, dry=False)
    assert outcomes(results) == {"good": "done", "crashes": "failed", "card": "skipped"}
    assert results["card"]["why"] == "no GPU, no vLLM on the Python path"
    assert results["crashes"]["why"] == "ValueError: out of | memory"
    assert results["crashes"]["figures"] == {"speed": [1.0, "x", ""]}, "earlier figures are kept"
    table = (tmp_path / "table.md").read_text().splitlines()
    assert any(line.endswith("| speed | 41,000 tokens/s | ≥ 40,000 |") for line in table)
    assert any("**failed** | ValueError: out of / memory" in line for line in table)


def test_next_call_continues_without_repeating_steps(
    steps: list[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.insert(0, Step("long", 200, ""))
    first = hour(60, tmp_path, dry=False)
    assert outcomes(first) | {"card": ""} == {
        **{"long": "left", "good": "done", "crashes": "failed", "card": ""}
    }
    assert first["long"]["why"] == "needs 205 s of a call"
    monkeypatch.setitem(CODE, "long", CODE["good"])
    monkeypatch.setitem(CODE, "good", "raise AssertionError('again')")
    second = hour(300, tmp_path, dry=False)
    assert outcomes(second)["long"] == "done" and second["good"] == first["good"]
    assert json.loads((tmp_path / "results.json").read_text())["steps"] == second


def test_hanging_step_times_out(steps: list[Step], tmp_path: Path) -> None:
    steps[:] = [Step("hangs", 1, "")]
    hangs = hour(60, tmp_path, dry=False)["hangs"]
    assert hangs["outcome"] == "failed" and "timed out after 1 s" in hangs["why"]


def test_step_that_interrupted_two_calls_fails(steps: list[Step], tmp_path: Path) -> None:
    """A step that interrupted two calls fails without a retry and keeps its earlier figures."""
    begun = {"good": {"outcome": "begun", "tries": 2}}
    (tmp_path / "results.json").write_text(json.dumps({"steps": begun}))
    figures = {"speed": [3.0, "tokens/s", ""]}
    (tmp_path / "good").mkdir()
    (tmp_path / "good/notes.json").write_text(json.dumps({"figures": figures}))
    results = hour(60, tmp_path, dry=False)
    why = {"outcome": "failed", "tries": 2, "why": "it interrupted two calls"}
    assert results["good"] == why | {"figures": figures}


def test_each_step_exists_and_fits_into_a_call() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
    for step in STEPS:
        assert callable(step.function()), step.name
        assert step.seconds + 5 <= 540, step.name


@pytest.mark.slow
def test_dry_step_records_its_figures(tmp_path: Path) -> None:
    (step,) = [each for each in STEPS if each.name == "prefix"]
    notes = tmp_path / "notes.json"
    job = Job(notes, tmp_path, tmp_path, "embedded", dry=True, card=False, seconds=60)
    step.function()(job)
    ((cosine, unit, aim),) = json.loads(notes.read_text())["figures"].values()
    assert (unit, aim) == ("", "> 0.999") and cosine > 0.999
