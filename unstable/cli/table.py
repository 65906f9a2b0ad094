"""What a command is: from its entry come its parsing, its usage, its help and its completion."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unstable.cli.options import EXIT_USER_ERROR, HELP, SHORT_FORMS, Reader, parse_options, typed
from unstable.config import (
    CONFIGS,
    ROOTS,
    ConfigError,
    RunConfig,
    fields,
    nearest,
    outline,
    shown,
    within,
)

WIDTH = 41
"""Characters of a command's form in the list of all; the rest of it is left out there."""


@dataclass(frozen=True)
class Given:
    """What a person gave a command: words, flags, its own options as values, and config fields."""

    words: list[str]
    flags: set[str]
    own: dict[str, Any]
    fields: dict[str, Any]
    typed: str

    def __getitem__(self, option: str) -> Any:
        return self.own[option]


def _texts() -> dict[str, tuple[dict[str, str], str]]:
    """By command, of `help.txt`: the ways to call it, each with what it does; then what it is."""
    found = {}
    text = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
    for section in text.removeprefix("# ").rstrip().split("\n\n# "):
        head, _, about = section.partition("\n\n")
        name, *lines = head.split("\n")
        forms = (line.rpartition(" : ") for line in lines)
        found[name] = {form: does for form, _, does in forms}, about
    return found


TEXTS = _texts()


@dataclass(frozen=True)
class Command:
    """An entry of the table. `forms` are the ways to call it, each with what it does."""

    does: Callable[[Given], int | None]
    forms: Mapping[str, str]
    about: str
    words: tuple[int, int] = (0, 0)
    """How many words come before the options: at least and at most."""
    own: Mapping[str, Reader] = field(default_factory=dict)
    """Options that are no fields of the config, each with what reads its value."""
    flags: tuple[str, ...] = ()
    """Options without a value."""
    takes_fields: bool = False
    short: Mapping[str, str] = field(default_factory=dict)
    """Short forms of fields that this command alone has."""

    @property
    def short_forms(self) -> dict[str, str]:
        return {**SHORT_FORMS, **self.short} if self.takes_fields else {}

    @property
    def options(self) -> list[str]:
        """All but config fields by their path."""
        return [*self.flags, *(f"--{name}" for name in self.own), *self.short_forms, "--help"]

    def usage(self, name: str) -> str:
        lines = [f"unstable {name} {form}".rstrip() for form in self.forms]
        about = self.about or "\n".join(f"{does}." for does in self.forms.values())
        return "usage: " + "\n       ".join(lines) + f"\n\n{about}"


def carry_out(name: str, command: Command, arguments: Sequence[str]) -> int:
    """Parse what was given and do it; returns the exit code."""
    if any(argument in HELP for argument in arguments):
        show_help(name, command, arguments)
        return 0
    least, most = command.words
    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    if count < least:
        print(command.usage(name))
        if arguments:
            needed = " ".join(next(iter(command.forms)).split()[:least])
            given = shown(" ".join(arguments))
            raise ConfigError(f"{given}: write unstable {name} {needed}, and options after that")
        return EXIT_USER_ERROR
    words, rest = list(arguments[: min(count, most)]), arguments[min(count, most) :]
    flags = {flag for flag in command.flags if flag in rest}
    options = parse_options([word for word in rest if word not in flags], command.short_forms)
    own = {
        option: read(f"--{option}", options.pop(option, None))
        for option, read in command.own.items()
    }
    if options and not command.takes_fields:
        known = ", ".join([*command.flags, *(f"--{each}" for each in command.own)]) or "none"
        raise ConfigError(f"--{[*options][0]} is no option of unstable {name}; it has {known}")
    return command.does(Given(words, flags, own, options, typed(name, arguments))) or 0


def overview(commands: Mapping[str, Command]) -> str:
    """The forms of all commands, a line each."""
    lines = []
    for name, command in commands.items():
        for form, does in command.forms.items():
            shown = f"unstable {name:10} {_shortened(form)}"
            lines.append(f"{shown:<{WIDTH + 20}} {does[0].lower()}{does[1:]}")
    short = textwrap.fill(f"Short forms: {', '.join(SHORT_FORMS)}.", 100, break_on_hyphens=False)
    return (
        "usage: " + "\n       ".join(lines) + f"\n\n{short} unstable --version says which release "
        "this is.\n"
        "Every field has its own option, such as --learner.learning_rate 2e-5 or --games.0.env "
        "Nim-v0;\nunstable train --help learner lists those of a section, --help all everything."
    )


def _shortened(form: str) -> str:
    """As many of its parts as fit, where `[--a B]` is one."""
    if len(form) <= WIDTH:
        return form
    shown = ""
    for part in re.findall(r"\[-[^\]]*\]|\S+", form):
        if len(shown) + len(part) > WIDTH - 4:
            return f"{shown}..."
        shown += f"{part} "
    return shown


def show_help(name: str, command: Command, arguments: Sequence[str]) -> None:
    """How a command is used, or the fields of the section that is asked for with their meaning."""
    topic = next((each for each in arguments if not each.startswith("-")), "")
    if not command.takes_fields or command.words[1] and not _fields_of(name, topic):
        print(command.usage(name))
    elif not topic:
        print(f"{command.usage(name)}\n\nSections:\n")
        _print_table(
            [(each.path, each.meaning, "") for each in outline(ROOTS.get(name, RunConfig))]
        )
    elif found := _fields_of(name, topic):
        print(f"Options of unstable {name} (N counts from 0; one past the end adds an entry):\n")
        _print_table([(f"--{each.path}", each.meaning, each.default) for each in found])
    else:
        known = [each.path for each in outline(ROOTS.get(name, RunConfig))]
        raise ConfigError(f"--help {topic}: no such section; {nearest(topic, known)}, or all")


def _fields_of(name: str, topic: str) -> list[Any]:
    if not topic:
        return []
    return [
        each
        for each in fields(ROOTS.get(name, RunConfig))
        if topic == "all" or within(each.path, topic)
    ]


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, meaning, default in rows:
        text = Text(meaning).append(default and f" ({default})", style="dim")
        table.add_row(Text(name, style="bold"), text)
    Console(soft_wrap=True).print(table)


SHELLS = ("bash", "zsh")
OPPONENTS = ("random", "expert", "rules", "base")
"""Those that `--opponent` takes besides a run's folder and what a config names."""


def completion(shell: str, commands: Mapping[str, Command]) -> str:
    """The script: commands, configs, options and fields as they are now, and folders.

    zsh reads the same one, once it is asked to complete as bash does.
    """
    cases = []
    for name, command in commands.items():
        known = fields(ROOTS.get(name, RunConfig)) if command.takes_fields else []
        paths = (f"--{each.path}".replace(".N.", ".0.") for each in known)  # a list's first
        options = [*command.options, *paths]
        cases.append(f"      {name}) options='{chr(10).join(options)}' ;;")
    configs = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    script = (
        Path(__file__)
        .with_name("completion.bash")
        .read_text(encoding="utf-8")
        .format(
            commands="\n".join(commands),
            configs="\n".join(configs),
            shells="\n".join(SHELLS),
            opponents="\n".join(OPPONENTS),
            cases="\n".join(cases),
        )
    )
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if shell == "zsh" else script
