"""Options of commands that set config fields: `--learner.learning_rate 2e-5`."""

import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import typer
from typer.core import CompletionItem, TyperCommand

from unstable.config import (
    ROOTS,
    ConfigError,
    RunConfig,
    fields,
    load_as,
    nearest,
    outline,
    read_yaml,
    within,
)

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
OWN_SHORT_FORMS = {
    "learn": {"--algorithm": "learner.algorithm.name"},
    "eval": {"--games": "eval.games", "--opponents": "eval.opponents"},
    "exploit": {
        "--samples": "eval.exploitability.samples",
        "--nodes": "eval.exploitability.nodes",
    },
}
"""Additional short forms, by command."""
HELP = ["-h", "--help"]


def parse_options(arguments: Sequence[str], short_forms: dict[str, str]) -> dict[str, Any]:
    """Return the values of options by dotted path; several values after one option form a list.

    >>> parse_options(["--steps", "3", "--eval.opponents", "random", "base"], SHORT_FORMS)
    {'loop.steps': 3, 'eval.opponents': ['random', 'base']}
    """
    found: dict[str, Any] = {}
    for option, *texts in _groups(arguments):
        if not option.startswith("--"):
            raise ConfigError(f"{option!r}: value without an option; write --FIELD VALUE")
        option, equals, first = option.partition("=")
        parts = short_forms.get(option, option.removeprefix("--")).split(".")
        own = 1 if parts[0] == "judges" else None  # a judge's name may contain dashes
        name = ".".join(p if i == own else p.replace("-", "_") for i, p in enumerate(parts))
        if name in found:
            raise ConfigError(f"{option} is given twice; give it once, with all its values")
        values = [_scalar(text) for text in ([first] if equals else []) + texts]
        if not values:
            raise ConfigError(f"--{name} has no value; write --{name} VALUE")
        found[name] = values if len(values) > 1 else values[0]
    return found


def _groups(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Yield the groups of words of a command line, split before each option."""
    starts = [i for i, word in enumerate(arguments) if i == 0 or word.startswith("--")]
    for start, end in pairwise([*starts, len(arguments)]):
        yield list(arguments[start:end])


def _scalar(text: str) -> Any:
    """Parse lists and mappings as YAML; numbers, true, false and null as JSON; all else as text."""
    try:
        if text[:1] in ("[", "{"):
            return read_yaml(text, "")
        return json.loads(text, parse_constant=str)
    except (ConfigError, ValueError, RecursionError):
        return text


C = TypeVar("C", bound=RunConfig)


def loaded(root: type[C], name: str | None, options: dict[str, Any]) -> C:
    """Return the config `name`, by default `default`, with options applied."""
    return load_as(root, "default" if name is None else name, options)


def loaded_run(root: type[C], name: str | None, options: dict[str, Any]) -> C:
    """Return a config with options; `first_run` if no config, game, model or algorithm is named."""
    starts = ("games", "model", "learner.algorithm")
    named = any(f"{path}.".startswith(f"{start}.") for path in options for start in starts)
    return loaded(root, "first_run" if name is None and not named else name, options)


class Given(NamedTuple):
    """The `obj` of the context of a `ConfigCommand`."""

    fields: dict[str, Any]
    """Values of config fields by dotted path."""
    typed: str
    """The command line, quoted for a shell."""


class ConfigCommand(TyperCommand):
    """A command that also takes each config field as an option, such as --eval.games 64."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move the config fields of a command line into `ctx.obj`, and parse the rest."""
        if ctx.resilient_parsing:  # completion
            return super().parse_args(ctx, args)
        typed = shlex.join(["unstable", str(self.name), *args])
        if asked := [i for i, word in enumerate(args) if word in HELP]:
            for section in args[asked[0] + 1 : asked[0] + 2]:
                _print_fields(ctx, section)
                ctx.exit()
            args = HELP[:1]
        options = {name: param for param in self.params for name in param.opts}
        own, others = [], []
        for first, *values in _groups(args):
            option, equals, value = first.partition("=")
            option = f"--{option[2:].replace('-', '_')}"
            if not first.startswith("--"):
                own += [first, *values]
            elif (param := options.get(option)) is None:
                others += [first, *values]
            elif getattr(param, "multiple", False) and values:
                values = [value, *values] if equals else values
                own += [word for each in values for word in (option, each)]
            else:
                own += [option + equals + value, *values]
        ctx.obj = Given(parse_options(others, self._short_forms), typed)
        return super().parse_args(ctx, own)

    @property
    def _root(self) -> type[RunConfig]:
        return ROOTS.get(str(self.name), RunConfig)

    @property
    def _short_forms(self) -> dict[str, str]:
        return SHORT_FORMS | OWN_SHORT_FORMS.get(str(self.name), {})

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of the config, and the short forms of fields."""
        with formatter.section("Config (fields: --help SECTION, --help all)"):
            formatter.write_dl([(f"--{each.path}", each.meaning) for each in outline(self._root)])
        with formatter.section("Short forms of fields"):
            formatter.write_text(", ".join(f"{k} {v}" for k, v in self._short_forms.items()))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Return completions, including config fields (of a list, only the first entry's)."""
        paths = [f"--{each.path}".replace(".N", ".0") for each in fields(self._root)]
        found = [CompletionItem(path) for path in paths if path.startswith(incomplete)]
        return [*super().shell_complete(ctx, incomplete), *found]


def _print_fields(ctx: Any, section: str) -> None:
    root = ROOTS.get(str(ctx.command.name), RunConfig)
    found = [each for each in fields(root) if section == "all" or within(each.path, section)]
    if not found:
        known = [each.path for each in outline(root)]
        raise ConfigError(f"--help {section}: unknown section; {nearest(section, known)}, or all")
    formatter = ctx.make_formatter()
    with formatter.section("Fields (N counts from 0; one past the end adds an entry)"):
        told = [(each, f" ({each.default})" if each.default else "") for each in found]
        formatter.write_dl([(f"--{each.path}", each.meaning + default) for each, default in told])
    print(formatter.getvalue(), end="")


def name_of(param: Any) -> str:
    """Return the name of an option or argument in the form of the command line."""
    return str(param.get_error_hint()).strip("'")


def refuse_others(ctx: typer.Context, why: str, *allowed: str) -> None:
    """Raise `ConfigError` if more is given than the `allowed` parameters or "fields"."""
    for param in ctx.command.params:
        if param.name not in allowed and ctx.params[param.name] not in (None, (), param.default):
            raise ConfigError(f"{name_of(param)}: {why}; leave it out")
    if ctx.obj and "fields" not in allowed:
        for path in ctx.obj.fields:
            raise ConfigError(f"--{path}: {why}; leave it out")
