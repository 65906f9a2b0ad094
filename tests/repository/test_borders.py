"""Borders that catch errors of any class: each handler raises or uses the error."""

import ast

import pytest

from tests.helpers.measures import ANY, FILES, PACKAGE, source
from unstable.config import ConfigError
from unstable.config.plugins import faults_to, refusing

SILENT = {"pass", "continue", "return", "return None", "break"}


def test_broad_handlers_use_or_raise_the_error() -> None:
    handlers = [(path, handler) for path in FILES for handler in source(path).broad_handlers]
    assert handlers
    for path, handler in handlers:
        place = f"{path.relative_to(PACKAGE)}:{handler.lineno}"
        uses = {node.id for node in ast.walk(handler) if isinstance(node, ast.Name)}
        raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
        assert raises or (handler.name in uses), place
        assert ast.unparse(handler.body[0]) not in SILENT, place


def test_no_broad_error_class_is_suppressed() -> None:
    for path in FILES:
        for call in source(path).calls:
            if call.function.endswith("suppress"):
                assert not set(call.arguments) & ANY, f"{path}:{call.line}"


def test_faults_go_to_the_handler_except_keyboard_interrupt() -> None:
    faults: list[BaseException] = []
    for fault in (ValueError("no"), SystemExit(3)):
        with faults_to(faults.append):
            raise fault
    assert [type(fault) for fault in faults] == [ValueError, SystemExit]
    with pytest.raises(KeyboardInterrupt), faults_to(faults.append):
        raise KeyboardInterrupt
    assert len(faults) == 2


def test_error_of_user_code_becomes_a_config_error_with_cause() -> None:
    line = "my bot raises KeyError 'x' at once; fix the error"
    with pytest.raises(ConfigError, match=line) as found, refusing("my bot", " at once"):
        raise KeyError("x")
    assert isinstance(found.value.__cause__, KeyError)
    with pytest.raises(ConfigError, match="^set it$"), refusing("my bot"):
        raise ConfigError("set it")
