"""Reading of a config from a file and a command line's options, and writing it as YAML."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from unstable.config.algorithm import AlgorithmConfig
from unstable.config.algorithms import ALGORITHMS
from unstable.config.base import (
    FORMAT,
    ConfigError,
    Section,
    check_format,
    nearest,
    path_problem,
    shown,
)
from unstable.config.opponents import OPPONENT_KINDS
from unstable.config.plain import read_text, read_yaml
from unstable.config.run import RunConfig
from unstable.config.supervised import DATA_KINDS, LearnRun, SFTRun, WorldRun

CONFIGS = Path(__file__).parent.parent / "configs"
ROOTS: dict[str, type[RunConfig]] = {"sft": SFTRun, "learn": LearnRun, "world": WorldRun}
"""Config of each command that has a section of its own, by the section's name."""
C = TypeVar("C", bound=RunConfig)
EXPONENT = re.compile(r"[+-]?\d+e[+-]?\d+", re.IGNORECASE)


def parse(data: dict[str, Any]) -> RunConfig:
    """Read the config that `data` describes, with a command's section if it has one."""
    return parse_as(_root_of(data), data)


def parse_as(root: type[C], data: dict[str, Any]) -> C:
    """Read the config of a command; raises `ConfigError` at the first mistake."""
    data = dict(data)
    check_format(data, "config")
    try:
        return root.model_validate(data)
    except ValidationError as error:
        raise ConfigError(one_line(error, data)) from None


def one_line(error: ValidationError, data: dict[str, Any]) -> str:
    """Return pydantic's first complaint about `data` as "field = value: what is wrong"."""
    first, *others = error.errors(include_url=False)
    field = _place(first, data)
    if first["type"] == "union_tag_invalid":
        given = str(first["ctx"]["tag"])
        if field == "learner.algorithm":
            hint = nearest(given, list(ALGORITHMS))
            return f"{field}.name = {shown(given)}: unknown algorithm; {hint}"
        thing, kinds = ("data", DATA_KINDS) if field[:3] == "sft" else ("opponent", OPPONENT_KINDS)
        return f"{field}.kind = {shown(given)}: unknown kind of {thing}; {nearest(given, kinds)}"
    if first["type"] == "union_tag_not_found":
        return f"{field}.kind: missing; set it"
    if first["type"] == "missing":
        return f"{field}: missing; set it"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        joint = "" if not field else ": " if message.startswith("unknown key") else "."
        return f"{field}{joint}{message}"
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "not a section; write keys and values below it"
    # A union has one error per member type.
    for other in others:
        if _place(other, data) == field:
            message += f" or {other['msg'].removeprefix('Input should be ')}"
    return f"{field or 'config'} = {shown(first['input'])}: {message[0].lower()}{message[1:]}"


def _place(complaint: ErrorDetails, data: Any) -> str:
    """Return the dotted path of a complaint, without the union members that pydantic adds."""
    path: list[str] = []
    for part in complaint["loc"]:
        if isinstance(data, dict):
            is_there = part in data
        else:
            is_there = isinstance(data, list | tuple) and part in range(len(data))
        if is_there:
            data = data[part]
            path.append(str(part))
    if complaint["type"] == "missing":
        path.append(str(complaint["loc"][-1]))
    return ".".join(path)


S = TypeVar("S", bound=Section)


def read_section(kind: type[S], text: str, place: str, example: str) -> S:
    """Read a section from YAML; raises `ConfigError` that begins with `place`."""
    data = read_yaml(text, place)
    if not isinstance(data, dict):
        raise ConfigError(f"{place}: not a mapping; write keys such as {example}:")
    check_format(data, place)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{place}: {one_line(error, data)}") from None


def dump_section(section: Section) -> str:
    """Return a section as YAML that `read_section` reads back to an equal one."""
    data = {"format": FORMAT, **section.model_dump(mode="json", exclude_defaults=True)}
    return yaml.safe_dump(data, sort_keys=False, width=100)


def paths_in(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted path of each value: loop.steps for {"loop": {"steps": 9}}."""
    for path, value in fields.items():
        if isinstance(value, dict) and value:
            yield from (f"{path}.{below}" for below in paths_in(value))
        else:
            yield str(path)


def with_numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with texts such as 1e-3, which YAML reads as text, as numbers."""
    is_number = {path: bool(EXPONENT.fullmatch(str(value))) for path, value in fields.items()}
    return {path: float(value) if is_number[path] else value for path, value in fields.items()}


def _root_of(data: Mapping[str, Any]) -> type[RunConfig]:
    return next((root for section, root in ROOTS.items() if section in data), RunConfig)


def load(name: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Load a shipped config (`default`) or a YAML file, with `overrides` by dotted path.

    The config has a command's section if the file has one.

    >>> load("default", {"games.0.env": "Nim-v0", "learner.epochs": 2}).learner.epochs
    2
    """
    data = _read(name)
    return _loaded(_root_of(data), data, overrides)


def load_as(root: type[C], name: str, overrides: Mapping[str, Any] | None = None) -> C:
    """Load the config of a command; sections of other commands in the file are left out."""
    return _loaded(root, _read(name), overrides)


def _loaded(root: type[C], data: dict[str, Any], overrides: Mapping[str, Any] | None) -> C:
    others = ROOTS.keys() - root.model_fields.keys()
    config = parse_as(root, {name: data[name] for name in data if name not in others})
    if not overrides:
        return config
    data = config.model_dump()
    current = config.learner.algorithm.name
    if (name := overrides.get("learner.algorithm.name", current)) != current:
        data["learner"]["algorithm"] = _shared(config.learner.algorithm, str(name))
    for path, value in overrides.items():
        # The port alone leaves the section's other fields unchanged.
        is_port = path == "listen" and isinstance(value, int)
        _put(data, "listen.port" if is_port else path, value)
    return parse_as(root, data)


def _shared(algorithm: AlgorithmConfig, name: str) -> dict[str, Any]:
    """Return the settings of an algorithm that also apply to the algorithm `name`."""
    shared = algorithm.model_fields_set & AlgorithmConfig.model_fields.keys() - {"name"}
    kind = ALGORITHMS.get(name, AlgorithmConfig)
    return algorithm.model_dump(include=shared - kind.without.keys())


def _read(name: str) -> dict[str, Any]:
    field = f"--config = {shown(name)}"
    if problem := path_problem(name):
        raise ConfigError(f"{field}: {problem}")
    path = CONFIGS / f"{name}.yaml"
    if not path.is_file():
        path = Path(name).expanduser()
    if not path.is_file():
        shipped = sorted(p.stem for p in CONFIGS.glob("*.yaml"))
        raise ConfigError(f"{field}: no such file or shipped config; {nearest(name, shipped)}")
    data = read_yaml(read_text(path, field), field)
    if not isinstance(data, dict | None):
        raise ConfigError(f"{field}: not a mapping; write keys such as games:")
    data = data or {}
    check_format(data, field)
    return data


def _put(data: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path; an index one past a list's end adds an entry."""
    *parents, last = path.split(".")
    place: Any = data
    for key in parents:
        if isinstance(place, dict) and place.get(key) is None:
            place[key] = {}
        place = place[key if isinstance(place, dict) else _index(place, key)]
        if not isinstance(place, dict | list):
            raise ConfigError(f"{path}: {key} is a single value without fields; set {key}")
    place[last if isinstance(place, dict) else _index(place, last)] = value


def _index(entries: list[Any], key: str) -> int:
    if not (key.isascii() and key.isdigit()) or int(key[:9]) > len(entries):
        raise ConfigError(f"{shown(key)}: invalid list index; use 0 to {len(entries)}")
    if int(key[:9]) == len(entries):
        entries.append({})
    return int(key[:9])


def dump(config: RunConfig) -> str:
    """Return the config as YAML that `load` reads back to an equal config."""
    data = {"format": FORMAT, **config.model_dump(mode="json")}
    return yaml.safe_dump(data, sort_keys=False, width=100)
