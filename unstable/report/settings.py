"""Settings of a run: a config as its differences from the defaults."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from unstable.config import RunConfig
from unstable.records.tables import Table
from unstable.report.run import Run

AUTO = "auto"


class ChangedField(NamedTuple):
    """Field that differs from its default: ChangedField("learner.epochs", 2, 1)"""

    path: str
    value: Any
    default: Any


def differences(config: RunConfig) -> list[ChangedField]:
    """Return all fields that differ from their defaults, which depend on algorithm and opponent."""
    return list(_differences(config, type(config)(), ""))


def _differences(section: BaseModel, default: object, prefix: str) -> Iterator[ChangedField]:
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{prefix}{name}"
        usual = field.get_default(call_default_factory=True, validated_data={})
        if type(default) is type(section):
            usual = getattr(default, name)
        elif field.is_required():
            usual = None
        if isinstance(value, BaseModel):
            own, default_name = getattr(value, "name", None), getattr(usual, "name", None)
            if name == "algorithm" and own != default_name:
                yield ChangedField(f"{path}.name", own, default_name)
            yield from _differences(value, usual, f"{path}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for index, entry in enumerate(value):
                there = usual[index] if usual and index < len(usual) else None
                kinds = [getattr(each, "kind", None) for each in (entry, there)]
                if kinds[0] != kinds[1]:
                    yield ChangedField(f"{path}.{index}.kind", *kinds)
                yield from _differences(entry, there, f"{path}.{index}.")
        elif value != usual:
            yield ChangedField(path, value, usual)


def config_tables(runs: Sequence[Run]) -> list[Table]:
    """Return tables of chosen fields and of fields derived from "auto", one column per run."""
    found = [{each.path: each for each in differences(run.config)} for run in runs]
    fields = {
        path: [
            one.get(path) or _as_by_default(run.config, path)
            for run, one in zip(runs, found, strict=True)
        ]
        for path in dict.fromkeys(path for one in found for path in one)
    }
    decided = {path for path, row in fields.items() if any(f and f.default == AUTO for f in row)}
    tables = []
    for title, paths in (
        ("Changed from the defaults", [path for path in fields if path not in decided]),
        ("Resolved from auto", [path for path in fields if path in decided]),
    ):
        rows = [[path, *_cells(fields[path])] for path in paths]
        names = ["value"] if len(runs) == 1 else [run.label for run in runs]
        marked = [len(runs) > 1 and len(set(row[1:-1])) > 1 for row in rows]
        columns = ["field", *names, "default"]
        if rows:
            tables.append(Table(title, columns, rows, marked=marked))
    return tables


def _as_by_default(config: RunConfig, path: str) -> ChangedField | None:
    """Return a field that has its default value; None if the config has no such field."""
    value: Any = config
    for name in path.split("."):
        if isinstance(value, BaseModel) and name in type(value).model_fields:
            value = getattr(value, name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return ChangedField(path, value, value)


def _cells(row: Sequence[ChangedField | None]) -> list[str]:
    """Return one value per run, and the defaults: all of them if the runs' algorithms differ."""
    values = ["–" if each is None else _shown(each.value) for each in row]
    defaults = dict.fromkeys(_shown(each.default) for each in row if each is not None)
    return [*values, " / ".join(defaults)]


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "–" if value is None else json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a section, or another value unknown to JSON, as a plain value."""
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else str(value)
