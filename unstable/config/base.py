"""Base class and value types of config sections, and the errors of a user."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, LiteralString, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)
from pydantic_core import PydanticCustomError

Auto = Literal["auto"]
MOST_RUNS = 2000
"""Most runs of a sweep or a league; each one is checked before anything starts."""
_MOST = 2**63 - 1  # largest 64-bit integer
Integer = Annotated[int, Field(ge=-_MOST, le=_MOST)]
PositiveInt = Annotated[int, Field(gt=0, le=_MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_MOST)]
Port = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(ge=0, le=1)]
if TYPE_CHECKING:
    Arguments = dict[str, Any]
else:
    Arguments = dict[str, JsonValue]
"""Arguments for a user's own code: plain values, with finite numbers."""


def path_problem(text: str) -> str | None:
    """Return why a text cannot be a path, with the remedy; None if it can."""
    if not text.strip() or not text.isprintable():
        return "not a path; use printable characters"
    if len(os.fsencode(text)) > 4000 or any(len(os.fsencode(p)) > 250 for p in Path(text).parts):
        return "path too long; shorten it"
    try:
        Path(text).expanduser()
    except RuntimeError:
        return "unknown user after ~; write the absolute path"
    return None


def _check_path(text: str) -> str:
    if problem := path_problem(text):
        raise PydanticCustomError("path", "{problem}", {"problem": problem})
    return text


PathText = Annotated[str, AfterValidator(_check_path)]
"""Path of a file or folder, which need not exist."""


def _fitting(pattern: str, remedy: LiteralString) -> AfterValidator:
    """Return a validator of text that matches a pattern as a whole."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise PydanticCustomError("name", remedy)
        return text

    return AfterValidator(check)


RunName = Annotated[
    str, _fitting(r"[\w+-][\w .+-]{0,79}", "use 1 to 80 letters, digits, spaces, . _ + -")
]
"""Name of one or more words that may be part of a folder's name."""
Key = Annotated[str, _fitting(r"[\w+-]{1,80}", "use 1 to 80 letters, digits, _ + -")]
"""Name that may be part of a dotted path."""
DISTRIBUTION = "unstable-selfplay"
"""Name of this package for pip; "unstable" is another project on PyPI."""
FORMAT = 2
"""Version of the format of a run's files, which they state."""


class ConfigError(ValueError):
    """A user's mistake in one line: field, value, remedy. The CLI prints it and exits with 2."""


class RunFailedError(RuntimeError):
    """Failure of a run, in one line that names where the details are."""


def check_format(content: dict[str, Any], place: Path | str) -> None:
    """Remove the format from a file's content; raises `ConfigError` if it is not `FORMAT`.

    A user's own file may state none.
    """
    found = content.pop("format", FORMAT)
    if found == 1:
        raise ConfigError(
            f"{place}: format = 1: written by an earlier version of unstable; read it with that "
            "version, or repeat the run"
        )
    if found != FORMAT:
        raise ConfigError(
            f"{place}: format = {found!r}: unsupported; this release of unstable reads format "
            f"{FORMAT}; use the release that wrote the file"
        )


def shown(value: Any) -> str:
    """Return a value as errors quote it: on one line, shortened if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python prints
        return f"{type(value).__name__} too large to print"
    return text if len(text) <= 120 else f"{text[:100]}...{text[-10:]}"


def nearest(word: str, known: list[str]) -> str:
    """Return a hint: the known word closest to `word`, or else the first known ones."""
    close = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    listed = sorted(known)
    return f"use one of {', '.join(listed[:8])}{', ...' if len(listed) > 8 else ''}"


def _as_word(value: Any) -> Any:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_as_word)]
"""Switch whose words on and off YAML reads as true and false."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str | int | float) else value


ONE_IS_A_LIST = BeforeValidator(_listed)
"""Validator that takes a single value for a field of several."""


class Section(BaseModel):
    """Immutable part of the config; an unknown key is an error that suggests the nearest one.

    The description of a field is its `description`, else the text below it, else the description in
    the extended section.
    """

    model_config = ConfigDict(
        defer_build=True,
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        extended = [each.model_fields for each in cls.__mro__[1:] if issubclass(each, Section)]
        for name, field in cls.model_fields.items():
            known = (each[name].description for each in extended if name in each)
            said = field.description or next(known, None)
            field.description = " ".join(said.split()) if said else None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    below = [
                        f"{name}.{key}"
                        for name, field in cls.model_fields.items()
                        if str(key) in getattr(field.annotation, "model_fields", {})
                    ]
                    hint = nearest(str(key), list(cls.model_fields))
                    hint = f"did you mean {below[0]!r}?" if below else hint
                    raise ValueError(f"unknown key {shown(key)}; {hint}")
                values = data[key] if isinstance(data[key], list) else [data[key]]
                truth = next((each for each in values if isinstance(each, bool)), None)
                if truth is not None and cls._takes_a_number(key):
                    raise ValueError(f"{key} = {str(truth).lower()}: not a number; give a number")
        return data

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with other values by dotted path, which are not validated."""
        own: dict[str, Any] = {}
        for path, value in changes.items():
            name, _, below = path.partition(".")
            held = own.get(name, getattr(self, name))
            own[name] = held.updated({below: value}) if below else value
        return self.model_copy(update=own)

    def refuse(self, name: str, why: str) -> None:
        """Raise `ValueError` if a field that has no meaning here differs from its default."""
        value = getattr(self, name)
        if value != type(self).model_fields[name].default:
            raise ValueError(f"{name} = {value!r}: {why}")

    @classmethod
    def _takes_a_number(cls, key: str) -> bool:
        types = list(parts(cls.model_fields[key].annotation))
        return (int in types or float in types) and bool not in types


def parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all annotations inside it."""
    yield annotation
    for part in get_args(annotation):
        yield from parts(part)
