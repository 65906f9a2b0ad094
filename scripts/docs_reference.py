"""Generates documentation from declarations in the code.

    .venv/bin/python scripts/docs_reference.py

fills the tables of docs/metrics.md, between `<!-- metrics: GROUP -->` and `<!-- end -->`. The
site's build calls `write`, which makes the pages of docs/reference/.
"""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

import unstable
from unstable.cli.commands import app
from unstable.cli.options import ConfigCommand
from unstable.config import LearnRun, RunConfig, SFTRun, WorldRun, fields, outline
from unstable.config.plugins import registered
from unstable.games.catalog.vetted import COLUMNS, PACK
from unstable.models.known import KNOWN
from unstable.models.support import PACKED
from unstable.models.tiny import SHIPPED
from unstable.models.wheels import WHEELS
from unstable.records.text import markdown_table
from unstable.types.metrics import METRICS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "metrics.md"
GAMES = (
    "Games with checked rules, observations and payoffs, generated from the package; "
    "`unstable games` prints the same. [](../textarena.md) covers all other games of TextArena."
)
MODELS = (
    "Models that the package knows by name, and the model types that it computes in packed rows, "
    "generated from the package. [](../models.md) explains both; any causal model of transformers "
    "can be named."
)
FAULTS = (
    "Failures of [](../reliability.md) and the tests that inject them, generated from the tests' "
    "markers. `slow` and `gpu` tests are among them."
)
PAPERS = (
    "Algorithms by the name that a config gives them, with their sources. "
    "[Algorithms](../algorithms.md) explains them and their settings."
)
BLOCK = re.compile(r"(<!-- metrics: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
CONFIGS: dict[str, type[BaseModel]] = {"sft": SFTRun, "learn": LearnRun, "world": WorldRun}
"""Commands with an additional config section."""


def filled(page: str) -> str:
    """Return a page with the tables of the registry of metrics."""
    return BLOCK.sub(lambda block: f"{block[1]}{table(block[2])}\n{block[3]}", page)


def table(group: str) -> str:
    """Return the metrics of a group as a table; the group "row" identifies a row."""
    rows = [
        (f"`{each.name}`", each.meaning, each.unit)
        for each in METRICS
        if (each.name.split("/")[0] if "/" in each.name else "row") == group
    ]
    return markdown_table(["name", "meaning", "unit"], rows)


def write(folder: Path) -> None:
    """Write the pages of the reference to a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.md").write_text(config_page(), encoding="utf-8")
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")
    (folder / "api.md").write_text(api_page(), encoding="utf-8")
    (folder / "papers.md").write_text(papers_page(), encoding="utf-8")
    (folder / "games.md").write_text(games_page(), encoding="utf-8")
    (folder / "models.md").write_text(models_page(), encoding="utf-8")
    (folder / "faults.md").write_text(faults_page(), encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    text = contributing.replace("](docs/", "](../").replace("](README.md)", "](../index.md)")
    (folder / "contributing.md").write_text(text, encoding="utf-8")


def config_page() -> str:
    """Return a section for each section of a config, with all its fields."""
    sections = [(option.path, option.meaning, fields(RunConfig)) for option in outline(RunConfig)]
    common = {path for path, _, _ in sections}
    for command, root in CONFIGS.items():
        own = [option for option in outline(root) if option.path not in common]
        sections += [
            (each.path, f"`unstable {command}` only. {each.meaning}", fields(root)) for each in own
        ]
    parts = [
        "# Config reference",
        "Every field of a config, generated from its declaration. `N` is the index of a list, "
        "`NAME` a key of your own. On the command line a field is an option: "
        "`--learner.epochs 2`.",
    ]
    for name, meaning, found in sections:
        rows = [
            (f"`{each.path}`", _cell(each.meaning), _cell(each.default.removeprefix("default: ")))
            for each in found
            if each.path.split(".")[0] == name
        ]
        parts += [f"## {name}", meaning, markdown_table(["field", "meaning", "default"], rows)]
    return "\n\n".join(parts) + "\n"


def cli_page() -> str:
    """Return a section for each command, with its arguments and options."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# Command-line reference",
        "Every command, generated from its declaration; `unstable COMMAND --help` prints the same.",
    ]
    for name, command in sorted(group.commands.items()):
        context = group.context_class(group, info_name="unstable")
        own = command.context_class(command, info_name=name, parent=context)
        usage = command.get_usage(own).removeprefix("Usage: ")
        parts += [f"## unstable {name}", command.help or "", f"```text\n{usage}\n```"]
        rows = [
            (f"`{record[0]}`", _cell(record[1]))
            for parameter in command.get_params(own)
            if (record := parameter.get_help_record(own)) is not None
        ]
        parts += [markdown_table(["option", "meaning"], rows)] if rows else []
        if isinstance(command, ConfigCommand):
            parts.append("Each [config field](config.md) is an option as well.")
    return "\n\n".join(parts) + "\n"


def api_page() -> str:
    """Return a section for each public name, filled in by Sphinx's autodoc."""
    parts = [
        "# Python API reference",
        "Everything that `import unstable` offers; [](../python_api.md) explains how to use it.",
    ]
    for name in sorted(unstable.__all__):
        value = getattr(unstable, name)
        kind, options = "autofunction", ""
        if isinstance(value, type):
            kind = "autoclass"
            options = "   :no-members:\n" if issubclass(value, BaseModel) else ""
        home = f"{value.__module__}.{value.__qualname__}"
        parts += [f"## {name}", f"```{{eval-rst}}\n.. {kind}:: {home}\n{options}```"]
    return "\n\n".join(parts) + "\n"


def papers_page() -> str:
    """Return the papers that each algorithm cites, by the docstring of its module."""
    from unstable.learners.algorithms import BUILT_IN, named_algorithm  # loads torch

    rows = []
    for name in [*BUILT_IN, *sorted(registered("algorithms"))]:
        doc = sys.modules[named_algorithm(name).__module__].__doc__ or ""
        papers = [url.rstrip(".:;,)") for url in re.findall(r"https://[^\s;]+", doc)]
        links = ", ".join(f"[{url.removeprefix('https://')}]({url})" for url in papers)
        rows.append((f"`{name}`", _cell(doc.partition("\n\n")[0]), links))
    table = markdown_table(["`learner.algorithm.name`", "algorithm", "papers"], rows)
    return f"# Paper index\n\n{PAPERS}\n\n{table}\n"


def games_page() -> str:
    """Return the vetted games, with what is known of each."""
    rows = [tuple(map(_cell, game.cells())) for game in PACK]
    table = markdown_table(COLUMNS, rows)
    return f"# Vetted games\n\n{GAMES}\n\n{table}\n"


def models_page() -> str:
    """Return the models that need no hub or whose size is known, and the packed model types."""
    rows = [
        *((f"`{name}`", "shipped") for name in SHIPPED),
        *((f"`{name}`", f"wheel `{wheel.package}`") for name, wheel in WHEELS.items()),
        *((f"`{name}`", "hub; planned without a download") for name in KNOWN if name not in WHEELS),
    ]
    table = markdown_table(["`model.name`", "source"], rows)
    types = ", ".join(f"`{each}`" for each in sorted(PACKED))
    return f"# Models\n\n{MODELS}\n\n{table}\n\n## Packed model types\n\n{types}\n"


def faults_page() -> str:
    """Return the failures that docs/reliability.md lists, with the tests that inject each."""
    tests = fault_tests()
    rows = [(failure, ", ".join(f"`{each}`" for each in tests[failure])) for failure in failures()]
    table = markdown_table(["failure", "tests"], rows)
    return f"# Tested failures\n\n{FAULTS}\n\n{table}\n"


def failures() -> list[str]:
    """List the first column of the table of failures in docs/reliability.md."""
    text = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    table = text.partition("## Failures\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.*?) \| ", table, re.MULTILINE)[1:]


def fault_tests() -> dict[str, list[str]]:
    """Return the tests marked with `pytest.mark.fault(FAILURE, ...)`, by failure."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            for marker in getattr(node, "decorator_list", []):
                if isinstance(marker, ast.Call) and ast.unparse(marker.func) == "pytest.mark.fault":
                    for failure in map(ast.literal_eval, marker.args):
                        name = f"{path.relative_to(ROOT)}::{getattr(node, 'name', '')}"
                        found[failure].append(name)
    return found


def _cell(text: str) -> str:
    """Escape what Markdown or a table would interpret."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), encoding="utf-8")
