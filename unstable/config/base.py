"""What every section of the config is made of, and the errors of a user."""

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from unstable.config.renamed import RENAMED

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
if TYPE_CHECKING:
    Arguments = dict[str, Any]
else:
    Arguments = dict[str, JsonValue]
"""What a user's own code is called with: plain values, finite as all others are."""


FORMAT = 1
"""What a run's files are written in, and say that they are."""


class ConfigError(ValueError):
    """A user's mistake in one line: field, value, remedy. The CLI prints it and exits with 2."""


class RunFailedError(RuntimeError):
    """A run that ended by a fault, in one line that says where the details are."""


def check_format(content: dict[str, Any], place: Path | str) -> None:
    """Take the format off what a file holds; raises `ConfigError` if it is not `FORMAT`.

    What has none was written before files named it, and reads as it is.
    """
    found = content.pop("format", FORMAT)
    if found != FORMAT:
        raise ConfigError(
            f"{place}: format = {found!r} is not the one that this release of unstable reads "
            f"({FORMAT}); use the release that wrote it"
        )


def nearest(word: str, known: list[str]) -> str:
    """A hint: the known word closest to `word`, or else the first of those that are known."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    listed = sorted(known)
    return f"known: {', '.join(listed[:8])}{', ...' if len(listed) > 8 else ''}"


def switch(value: Any) -> Any:
    """on and off, which YAML reads as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Section(BaseModel):
    """A part of the config: immutable; an unknown key is an error that suggests the nearest."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    now = RENAMED.get(key)
                    known = now in cls.model_fields
                    hint = nearest(str(key), list(cls.model_fields))
                    raise ValueError(
                        f"unknown key {key!r}; {f'it is called {now!r} now' if known else hint}"
                    )
        return data
