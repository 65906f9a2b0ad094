"""Where an error of any class is caught: at few borders, each of which does something with it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from unstable.config import ConfigError
from unstable.config.plugins import faults_to, refusing

PACKAGE = Path(__file__).parent.parent.parent / "unstable"
ANY = {"Exception", "BaseException"}
MOST = 9
"""Handlers of the package that catch any error, the border `faults_to` among them, and that of a
program's side (`drivers.py`), which imports nothing of ours."""
SILENT = {"pass", "continue", "return", "return None", "break"}


def classes(node: ast.expr | None) -> set[str]:
    """The names of what a handler catches; a bare one catches all."""
    if node is None:
        return ANY
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {ast.unparse(part) for part in parts}


def broad_handlers() -> Iterator[tuple[str, ast.ExceptHandler]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler) and classes(node.type) & ANY:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_any_error_is_caught_at_few_places() -> None:
    places = [place for place, _ in broad_handlers()]
    assert len(places) <= MOST, places


def test_none_of_them_is_silent() -> None:
    for place, handler in broad_handlers():
        uses = {node.id for node in ast.walk(handler) if isinstance(node, ast.Name)}
        raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
        assert raises or (handler.name in uses), place
        assert ast.unparse(handler.body[0]) not in SILENT, place


def test_no_error_of_any_class_is_suppressed() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
                assert not {ast.unparse(given) for given in node.args} & ANY, path


def test_a_fault_goes_to_whom_it_may_concern_and_no_further() -> None:
    faults: list[BaseException] = []
    for fault in (ValueError("no"), SystemExit(3)):
        with faults_to(faults.append):
            raise fault
    assert [type(fault) for fault in faults] == [ValueError, SystemExit]
    with pytest.raises(KeyboardInterrupt), faults_to(faults.append):
        raise KeyboardInterrupt
    assert len(faults) == 2


def test_what_a_users_code_raises_is_a_line_with_its_cause() -> None:
    line = "my bot raises KeyError 'x' at once; mend it"
    with pytest.raises(ConfigError, match=line) as found, refusing("my bot", " at once"):
        raise KeyError("x")
    assert isinstance(found.value.__cause__, KeyError)
    with pytest.raises(ConfigError, match="^set it$"), refusing("my bot"):
        raise ConfigError("set it")
