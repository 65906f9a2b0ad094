"""Config fields as `--help` shows them."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, get_origin

from pydantic import BaseModel

from unstable.config.base import parts


class Option(NamedTuple):
    """A field as `--help` shows it: Option("learner.epochs", "passes ...", "default: 1")"""

    path: str
    meaning: str
    default: str


def fields(section: type[BaseModel]) -> list[Option]:
    """List every value of a section and of the sections below it, once.

    N in a path is a list's index, NAME a custom key.
    """
    found: dict[str, Option] = {}
    for option in _fields(section, ""):
        found.setdefault(option.path, option)
    return list(found.values())


def outline(config: type[BaseModel]) -> list[Option]:
    """List the sections of a config with their summaries, and its own fields, in order."""
    found = []
    for name, field in config.model_fields.items():
        below = list(_sections(field.annotation))
        about = (below[0].__doc__ or "").partition("\n")[0] if below else field.description or ""
        found.append(Option(name, about, ""))
    return found


def within(path: str, section: str) -> bool:
    """Return whether an option is a section or belongs to it; indices may be left out.

    >>> within("games.N.invalid_moves.allowed", "games.invalid_moves")
    True
    """
    plain = [part for part in path.split(".") if part != "N"]
    asked = [part for part in section.split(".") if part != "N" and not part.isdigit()]
    begun = zip(plain, asked, strict=False)
    return len(asked) <= len(plain) and all(own in ("NAME", each) for own, each in begun)


def _fields(section: type[BaseModel], prefix: str) -> Iterator[Option]:
    for name, field in section.model_fields.items():
        below = list(_sections(field.annotation))
        kind = get_origin(field.annotation)
        key = ".N" if kind is list else ".NAME" if kind is dict else ""
        path = f"{prefix}{name}{key if below else ''}"
        meaning = field.description or ""
        if not below:
            needed = field.is_required()
            yield Option(
                path, meaning, "needed" if needed else f"default: {json.dumps(field.default)}"
            )
        elif meaning:
            yield Option(path, meaning, "")
        for inner in below:
            yield from _fields(inner, f"{path}.")


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections in a field's type."""
    for part in parts(annotation):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
