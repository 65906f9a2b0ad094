"""Runs a table of quick checks as one test case, since a case costs more than most checks."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest


def every_row(names: str, *rows: Any) -> Callable[[Callable], Callable]:
    """Run a test for every row, as `pytest.mark.parametrize` does, in one case.

    All rows run, and every row that fails is in the group that is raised. Rows share fixtures, but
    for `tmp_path` and `monkeypatch`.
    """
    asked = names.split(", ")
    table = [dict(zip(asked, row if len(asked) > 1 else (row,), strict=True)) for row in rows]
    assert len(table) > 1, "a table needs several rows; pass them as arguments, not as a list"

    def decorate(test: Callable) -> Callable:
        @wraps(test)
        def all_rows(**fixtures: Any) -> None:
            wrong: list[BaseException] = []
            for row in table:
                with _case(fixtures, row, wrong) as case:
                    test(**case)
            _raise(wrong, len(table))

        @wraps(test)
        async def all_rows_async(**fixtures: Any) -> None:
            wrong: list[BaseException] = []
            for row in table:
                with _case(fixtures, row, wrong) as case:
                    await test(**case)
            _raise(wrong, len(table))

        made: Any = all_rows_async if inspect.iscoroutinefunction(test) else all_rows
        given = inspect.signature(test)
        fixtures = [each for name, each in given.parameters.items() if name not in asked]
        made.__signature__ = given.replace(parameters=fixtures)
        return made

    return decorate


@contextmanager
def _case(
    fixtures: dict[str, Any], row: dict[str, Any], wrong: list[BaseException]
) -> Iterator[dict[str, Any]]:
    """The test's arguments for a row; what it raises is added to `wrong`."""
    with pytest.MonkeyPatch.context() as patch:
        own = fixtures | row
        if "monkeypatch" in own:
            own["monkeypatch"] = patch
        if "tmp_path" in own:
            own["tmp_path"] = _new_folder(own["tmp_path"])
        try:
            yield own
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"row: {row}")
            wrong.append(error)


def _new_folder(parent: Any) -> Any:
    folder = parent / f"row-{len(list(parent.iterdir()))}"
    folder.mkdir()
    return folder


def _raise(wrong: Sequence[BaseException], rows: int) -> None:
    if wrong:
        raise BaseExceptionGroup(f"{len(wrong)} of {rows} rows fail", wrong)
