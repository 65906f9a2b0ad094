"""Fixtures of the studies' tests."""

import pytest

from tests.helpers.child_runs import FakeRun, fake_child
from unstable.studies import several


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeRun]:
    monkeypatch.setattr(several, "Child", fake_child)
    monkeypatch.setattr(several, "LOOK_S", 0.0)
    for name, value in (("fails", {}), ("begun", []), ("commands", {}), ("looks", 0)):
        monkeypatch.setattr(FakeRun, name, value)
    monkeypatch.setattr(FakeRun, "killed_at", None)
    monkeypatch.setattr(FakeRun, "signal_at", None)
    return FakeRun
