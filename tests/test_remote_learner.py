"""What a learner's process does besides learning."""

from pathlib import Path
from typing import Any

import pytest
import torch

from unstable.config import parse
from unstable.records.folder import RunFolder
from unstable.runtime.learner_ranks import LearnerProcess


class Deeds(list[str]):
    """A learner that writes down what it is asked to do."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.append(name)


@pytest.mark.parametrize("share", ["sleep", "split"])
def test_an_engine_that_takes_turns_can_wake_after_any_call(
    share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeds = Deeds()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: deeds.append("freed"))
    config = parse({"actors": {"share_gpu": share}})
    process = LearnerProcess(config, RunFolder(tmp_path), threads=1)
    process._learner = deeds
    anything: Any = None
    process.update(anything)
    process.logprobs([])
    process.logprobs_under(anything, [])
    process.load(0)
    process.save(0, {})
    calls = ["update", "logprobs", "logprobs_under", "load", "save"]
    freed = ["freed"] if share == "sleep" else []
    assert deeds == [entry for call in calls for entry in [call, *freed]]
