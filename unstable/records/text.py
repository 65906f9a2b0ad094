"""Numbers, intervals, durations and Markdown tables in one notation for people."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NONE = "–"
"""Text for a missing value."""
TINY = 1e-12
"""Magnitude below which a number counts as a rounding error, and is shown as 0."""


def number(value: float | None) -> str:
    """Format a number with three significant digits, or all of its integer part; a dash for None.

    >>> [number(x) for x in (None, 3.0, 12345.6, 0.042137, -0.31, -1e-17)]
    ['–', '3', '12,346', '0.0421', '−0.31', '0']
    """
    if value is None:
        return NONE
    if abs(value) < TINY:
        return "0"
    return _with_minus(f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}")


def _with_minus(text: str) -> str:
    return f"−{text[1:]}" if text.startswith("-") else text


def fixed(value: float | None, digits: int = 2) -> str:
    """Format a number with `digits` digits after the point, and no sign before 0.

    >>> fixed(0.125), fixed(-0.5, 3), fixed(-1e-17, 3), fixed(None)
    ('0.12', '−0.500', '0.000', '–')
    """
    return NONE if value is None else _with_minus(f"{value:z.{digits}f}")


def signed(value: float | None, digits: int = 2) -> str:
    """Format a number with its sign, unless it rounds to 0.

    >>> signed(0.5), signed(-0.25), signed(-0.001), signed(None)
    ('+0.50', '−0.25', '0.00', '–')
    """
    if value is None:
        return NONE
    return _with_minus(f"{value:+.{digits}f}") if round(value, digits) else fixed(0.0, digits)


def percent(share: float | None) -> str:
    """Format a share as whole percent: percent(0.514) is '51 %'."""
    return NONE if share is None else f"{100 * share:z.0f} %"


def interval(
    value: float | None, low: float | None, high: float | None, form: Callable[[float], str] = fixed
) -> str:
    """Format a figure with the ends of its interval, if it has one.

    >>> interval(0.5, 0.25, 0.75), interval(0.5, None, None, signed), interval(None, None, None)
    ('0.50 (0.25 to 0.75)', '+0.50', '–')
    """
    if value is None:
        return NONE
    ends = "" if low is None or high is None else f" ({form(low)} to {form(high)})"
    return f"{form(value)}{ends}"


def mean_interval(figures: Mapping[str, Any] | None, form: Callable[[float], str] = fixed) -> str:
    """Format a mean with its interval from a record's `mean`, `low` and `high`.

    >>> mean_interval({"mean": 0.5, "low": 0.25, "high": 0.75}), mean_interval(None)
    ('0.50 (0.25 to 0.75)', '–')
    """
    if figures is None:
        return NONE
    return interval(figures["mean"], figures["low"], figures["high"], form)


def difference(figures: Mapping[str, Any], name: str) -> str:
    """Format a signed figure with its interval: `name`, `name_low` and `name_high`."""
    value, low, high = (figures.get(f"{name}{end}") for end in ("", "_low", "_high"))
    return interval(value, low, high, signed)


def bounds(low: float, high: float, between: str = " to ", digits: int = 3) -> str:
    """Format two ends, or one figure if they are shown alike.

    >>> bounds(0.25, 0.25), bounds(-1e-17, 0.5), bounds(0.25, 0.5, between="–")
    ('0.250', '0.000 to 0.500', '0.250–0.500')
    """
    return between.join(dict.fromkeys(fixed(end, digits) for end in (low, high)))


def against(opponent: str, mode: str) -> str:
    """Return an opponent, and how the version answered it unless it sampled at temperature 1.

    >>> against("random", "sampled"), against("random", "greedy")
    ('random', 'random, greedy')
    """
    return opponent if mode == "sampled" else f"{opponent}, {mode}"


def duration(seconds: float) -> str:
    """Format seconds for people.

    >>> duration(41.2), duration(245), duration(3 * 3600 + 125)
    ('41 s', '4 min 05 s', '3 h 02 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def command_line(*words: object) -> str:
    """Return a command quoted for a shell; every printed command to paste is made by this.

    >>> command_line("unstable", "report", "my runs/one")
    "unstable report 'my runs/one'"
    """
    return shlex.join(map(str, words))


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; cells may hold any text."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
