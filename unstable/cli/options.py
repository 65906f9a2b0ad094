"""What a person typed, as values: options by their path, folders, versions, numbers."""

import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from unstable.config import ConfigError, RunConfig, load_as, path_problem, read_yaml, shown

SHORT_FORMS = {
    "--model": "model.name",
    "--num_actors": "actors.num",
    "--ray_address": "cluster.address",
    "--num_learners": "learner.num",
    "--steps": "loop.steps",
    "--run_dir": "tracking.run_dir",
    "--init": "model.init",
    "--wandb": "tracking.wandb",
    "--name": "tracking.name",
    "--tags": "tracking.tags",
}
HELP = ("-h", "--help")
VERSION = ("--version", "-V", "version")
EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
C = TypeVar("C", bound=RunConfig)
Reader = Callable[[str, Any], Any]
"""What makes a value of what was given for an option; raises `ConfigError` that names both."""


def parse_options(arguments: Sequence[str], short_forms: dict[str, str]) -> dict[str, Any]:
    """Options by dotted path. Several values after one option are a list.

    >>> parse_options(["--steps", "3", "--eval.opponents", "random", "base"], SHORT_FORMS)
    {'loop.steps': 3, 'eval.opponents': ['random', 'base']}
    """
    given: dict[str, list[str]] = {}
    values: list[str] | None = None
    for argument in arguments:
        if argument.startswith("--"):
            option, equals, value = argument.partition("=")
            name = short_forms.get(option, option.removeprefix("--")).replace("-", "_")
            if name in given:
                raise ConfigError(f"{option} is given twice; give it once, with all its values")
            values = given[name] = [value] if equals else []
        elif values is None:
            raise ConfigError(f"{argument!r} follows no option; write --field value")
        else:
            values.append(argument)
    for name, texts in given.items():
        if not texts:
            raise ConfigError(f"--{name} has no value; write --{name} VALUE")
    return {name: _value(texts) for name, texts in given.items()}


def _value(texts: list[str]) -> Any:
    values = [scalar_of(text) for text in texts]
    return values if len(values) > 1 else values[0]


def scalar_of(text: str) -> Any:
    """Lists and mappings as YAML, numbers, true, false and null as JSON, all else as it stands."""
    try:
        if text[:1] in ("[", "{"):
            return read_yaml(text, "")
        return json.loads(text, parse_constant=str)
    except (ConfigError, ValueError, RecursionError):
        return text


def loaded(root: type[C], name: str | None, options: dict[str, Any]) -> C:
    """The config of that name or file, `default` without one, with the options' fields."""
    return load_as(root, "default" if name is None else name, options)


def loaded_run(root: type[C], name: str | None, options: dict[str, Any]) -> C:
    """As `loaded`; but where no config, game, model or algorithm is named it is `first_run`."""
    starts = ("games", "model", "learner.algorithm")
    named = any(f"{path}.".startswith(f"{start}.") for path in options for start in starts)
    return loaded(root, "first_run" if name is None and not named else name, options)


def typed(command: str, arguments: Sequence[str]) -> str:
    """What was typed, as a shell takes it again."""
    return shlex.join(["unstable", command, *arguments])


def any_value(option: str, value: Any) -> Any:
    """Whatever was given."""
    return value


def text_of(option: str, value: Any) -> str | None:
    """One word; None where none is given."""
    if isinstance(value, list | dict):
        raise ConfigError(f"{option} = {shown(value)}: give one, and fields as --FIELD VALUE")
    return None if value is None else str(value)


def _of(kind: Any, remedy: str) -> Reader:
    """Reads a value of a type; None where none is given."""
    adapter = TypeAdapter(kind | None)

    def read(option: str, value: Any) -> Any:
        try:
            return adapter.validate_python(value, strict=True)
        except ValidationError:
            words = "; what is no option comes before all options" if type(value) is list else ""
            raise ConfigError(f"{option} = {shown(value)}: {remedy}{words}") from None

    return read


_WHOLE = Annotated[int, Field(ge=0)]
number_of = _of(Annotated[float, Field(ge=0, allow_inf_nan=False)], "give a number, 0 or more")
positive_of = _of(Annotated[int, Field(ge=1)], "give a number, 1 or more")
threads_of = _of(Annotated[int, Field(ge=1, le=1024)], "give a number from 1 to 1024")
whole_number_of = _of(_WHOLE, "give a number, 0 or more")
version_of = _of(_WHOLE | Literal["best"], "give a version's number, such as 12, or best")
choice_of = _of(bool, "give true or false")


def folder_at(option: str, text: str) -> Path:
    """A folder or file by its path."""
    if problem := path_problem(text):
        raise ConfigError(f"{option} = {shown(text)}: {problem}")
    return Path(text).expanduser()


def versions_of(option: str, value: Any) -> tuple[int, int] | None:
    """The first and the last version of FROM:TO; None where none are given."""
    if value is None:
        return None
    if (ends := re.fullmatch(r"([0-9]+):([0-9]+)", str(value))) is None:
        raise ConfigError(f"{option} = {shown(value)}: give two versions, such as 150:200")
    return int(ends[1]), int(ends[2])


def some_versions_of(option: str, value: Any) -> list[int | Literal["best"]]:
    """Versions of a list, or of words with commas between; [] where none are given."""
    parts = value if isinstance(value, list) else [] if value is None else str(value).split(",")
    return [
        version_of(option, scalar_of(part.strip()) if isinstance(part, str) else part)
        for part in parts
    ]


def run_and_version(option: str, text: str) -> tuple[Path, int | Literal["best"] | None]:
    """The folder and the version in RUN@VERSION; None where no version is given."""
    path, at, number = text.rpartition("@")
    version = version_of("@VERSION", scalar_of(number) if at else None)
    return folder_at(option, path if at else text), version
