"""Printed commands can be pasted, even if a folder's name contains a space."""

import ast
import re
import shlex
import socket
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from unstable.commands.diagnosis import condition_of
from unstable.commands.report import report_at_end
from unstable.config import dump, load
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import again
from unstable.tracking.summary import summary

PACKAGE = Path(__file__).parent.parent.parent / "unstable"
COMMANDS = "train|sft|learn|sweep|league|eval|exploit|play|replay|report|watch|runs|export|config"
COMMANDS += "|doctor|model"


def made(root: Path, *, sft: bool = False) -> RunFolder:
    folder = RunFolder(root / "it's my runs" / "one")
    folder.checkpoint(1).mkdir(parents=True)
    folder.config.write_text(dump(load("tiny")), encoding="utf-8")
    folder.state(1).write_text("{}", encoding="utf-8")
    LineFile(folder.metrics).write({"version": 1})
    if sft:
        folder.examples.touch()
    return folder


def conditions(folder: RunFolder) -> list[str]:
    """List the next steps that the doctor suggests for a run in each state."""
    now, here = time.time(), socket.gethostname()
    states: list[dict[str, Any]] = [
        {"state": word, "host": here} for word in ("ended", "failed", "interrupted", "running")
    ]
    found = [condition_of(folder, state, now).next for state in ({}, *states)]
    return [line for line in found if line != "nothing to do"]


def failed_report(folder: RunFolder) -> list[str]:
    told: list[str] = []
    folder.config.write_text("seed: [", encoding="utf-8")
    assert report_at_end(folder, told.append) is None
    return told[-1:]


def summed_up(folder: RunFolder) -> list[str]:
    console = Console(width=1000)
    with console.capture() as captured:
        console.print(summary(folder, "interrupted"))
    return [line for line in captured.get().splitlines() if "unstable" in line]


@pytest.mark.parametrize("sft", [False, True], ids=["train", "sft"])
def test_printed_commands_quote_the_folder(sft: bool, tmp_path: Path) -> None:
    folder = made(tmp_path, sft=sft)
    said = [conditions(folder), summed_up(folder), [again(folder)], failed_report(folder)]
    assert all(said)
    commands = [line[line.rindex("unstable ") :] for line in chain(*said)]
    assert [each for each in commands if not re.match(rf"unstable ({COMMANDS}) ", each)] == []
    assert [each for each in commands if str(folder.root) not in shlex.split(each)] == []


def test_commands_are_built_by_command_line() -> None:
    """`records.text.command_line` quotes arguments; an f-string does not."""
    begun = re.compile(rf"\bunstable ({COMMANDS}) ([-\w]+ )*$|--(resume|fork|config) $")
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for text, value in zip(node.values, node.values[1:], strict=False):
                if isinstance(text, ast.Constant) and isinstance(value, ast.FormattedValue):
                    found = begun.search(str(text.value))
                    assert found is None, f"{path}:{node.lineno}"
