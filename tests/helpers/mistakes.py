"""Checks of errors: a user's mistake is a `ConfigError` of one line."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from unstable.config import ConfigError


def line_of(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Return the line with which a call rejects its arguments."""
    with pytest.raises(ConfigError) as raised:
        call(*arguments, **named)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def refused(said: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Check that a call rejects its arguments in one line that matches a pattern."""
    line = line_of(call, *arguments, **named)
    assert re.search(said, line), line
