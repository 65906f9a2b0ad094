"""Expected duration of a run, printed before the run starts."""

from dataclasses import replace
from typing import Any

from unstable.commands.prepare import prepare
from unstable.commands.train import expected_line
from unstable.config import load


def line(**changes: Any) -> str:
    resolved = prepare(load("tiny_nim", {"loop.steps": 20, **changes}))
    return expected_line(resolved._replace(machine=replace(resolved.machine, gpus=())))


def test_only_durations_of_shipped_configs_are_known() -> None:
    expected = "duration about 40 s for 20 updates (tiny_nim on two CPU cores)"
    assert line() == line(seed=5) == expected
    assert line(**{"learner.batch_size": 64}) == "duration unknown until update 1 of 20"
