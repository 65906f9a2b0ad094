"""Text of observations: the env's own text, or its numbers."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

MASK = "action_mask"
"""Key of the mask of legal actions, which the text omits."""
_MOST = 10_000  # maximum numbers in a text
_COLOURED = re.compile(r"\x1b\[(\d+)[;\d]*m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPES = re.compile(r"\x1b\[[;\d]*m")
_COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def readable(observation: Any) -> str:
    """Format an observation's numbers with one line per row, planes of the last axis in sequence.

    >>> readable({"observation": [[1, 0], [0.5, 2]], "action_mask": [1, 0]})
    '1 0\\n0.5 2'
    >>> readable({"hand": (3, 4), "turn": 1})
    'hand: 3 4\\nturn: 1'
    >>> readable([12345.0, 12346.0, 0.1, -0.0])
    '12345.0 12346.0 0.1 0'
    """
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        seen = _seen(observation)
        if len(seen) == 1:
            return readable(*seen.values())
        return "\n".join(f"{key}:{_beside(readable(value))}" for key, value in seen.items())
    if isinstance(observation, tuple | list) and not _is_array(observation):
        return "\n".join(map(readable, observation))
    return _rows(np.asarray(observation))


def is_readable(observation: Any) -> bool:
    """Return whether an observation has few enough numbers for a text."""
    return _size(observation) <= _MOST


def marked(text: str) -> str:
    """Convert terminal text to plain text, with names for colors.

    >>> marked("\\x1b[41mS\\x1b[0mFFF")
    'red(S)FFF'
    """
    named = _COLOURED.sub(lambda found: f"{_colour(int(found[1]))}({found[2]})", text)
    return _ESCAPES.sub("", named)


def _colour(code: int) -> str:
    place = code % 10
    return _COLOURS[place] if place < len(_COLOURS) else "marked"


def _seen(observation: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in observation.items() if key != MASK}


def _beside(text: str) -> str:
    return f"\n{text}" if "\n" in text else f" {text}"


def _is_array(values: tuple[Any, ...] | list[Any]) -> bool:
    """Return whether values are an array of numbers, with equally long rows."""
    try:
        return np.asarray(values).dtype.kind in "biuf"
    except ValueError:
        return False


def _rows(array: Any) -> str:
    if array.ndim > 3:
        return "\n\n".join(map(_rows, array))
    if array.ndim == 3:
        return "\n\n".join(map(_rows, np.moveaxis(array, -1, 0)))
    if array.ndim == 2:
        return "\n".join(map(_rows, array))
    return " ".join(map(_number, np.atleast_1d(array)))


def _number(value: Any) -> str:
    """Format a number with enough digits to distinguish it from other values of its type."""
    if isinstance(value, np.bool_):
        return str(int(value))
    if not isinstance(value, np.floating):
        return str(value)
    value = value + type(value)(0)  # turns -0 into 0
    short = f"{value:.4g}"
    return short if type(value)(short) == value else str(value)


def _size(observation: Any) -> int:
    if isinstance(observation, str):
        return 1
    if isinstance(observation, Mapping):
        return sum(map(_size, _seen(observation).values()))
    if isinstance(observation, tuple | list):
        return sum(map(_size, observation))
    return int(np.size(observation))
