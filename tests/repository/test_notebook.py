"""`examples/first_run.ipynb`, executed by a kernel, in small."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from unstable.records.folder import RunFolder

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"
SMALL = '{"loop.steps": 1, "eval.games": 8, "learner.batch_size": 256}'


def test_notebook_trains_plots_and_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, 4)
    tagged = {tag: cell for cell in notebook.cells for tag in cell.metadata.get("tags", [])}
    tagged["install"].source = ""
    tagged["parameters"].source = f'OPTIONS = {SMALL}\nFOLDER = "outputs/notebook"'
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [each for each in shown if "image/png" in each.get("data", {})]
    printed = "".join(each.get("text", "") for each in shown)
    assert len(pictures) == 2 and "The game is over" in printed
    folder = RunFolder(tmp_path / "outputs/notebook")
    assert folder.versions() == [0, 1] and folder.report.stat().st_size > 500_000
