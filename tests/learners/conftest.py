"""Fixtures: a tiny model, a teacher of it, and the gradients of optimizer steps."""

import pytest

from tests.helpers.learners import save_model, save_teacher, spy_on_gradients


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return save_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.fixture
def gradients(monkeypatch):
    return spy_on_gradients(monkeypatch)
