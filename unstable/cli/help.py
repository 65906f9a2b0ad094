"""The fields of a config as help."""

from collections.abc import Sequence

from unstable.cli.usage import USAGE
from unstable.config import ConfigError, RunConfig, fields, nearest, outline, within


def show_help(program: str, arguments: Sequence[str]) -> int:
    """Print the sections, or the fields of the one that is asked for, each with its meaning."""
    topics = [argument for argument in arguments if not argument.startswith("-")]
    topic = topics[0] if topics else ""
    if not topic:
        print(f"{USAGE}\n\nSections:\n")
        _print_table([(each.path, each.meaning, "") for each in outline(RunConfig)])
        return 0
    found = [each for each in fields(RunConfig) if topic == "all" or within(each.path, topic)]
    if not found:
        known = [each.path for each in outline(RunConfig)]
        raise ConfigError(f"--help {topic}: no such section; {nearest(topic, known)}, or all")
    print(f"Options of {program} (N counts from 0; one past the end adds an entry):\n")
    _print_table([(f"--{each.path}", each.meaning, each.default) for each in found])
    return 0


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
