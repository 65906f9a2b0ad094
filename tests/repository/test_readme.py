"""README's config is valid; commands and links of all pages work."""

import ast
import inspect
import re
import sys
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from scripts import docs_reference
from tests.helpers.pages import README, ROOT, blocks, commands
from unstable.cli import run
from unstable.commands.prepare import check_games
from unstable.config import ROOTS, ConfigError, RunConfig, load_as, parse

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]
MY_GAMES = """
import textarena as ta


class RaceTo21(ta.Env):
    def reset(self, num_players, seed=None):
        self.state = ta.TwoPlayerState(num_players=num_players, seed=None)
        self.state.reset(game_state={}, player_prompt_function=lambda player_id, game_state: "Go.")

    def step(self, action):
        return self.state.step()


def legal(env):
    return ["[1]"]


class Bot:
    def __call__(self, observation):
        return "[1]"
"""


PRINTING = {"model", "games"}
"""Commands that only print and have no config."""


HANDED_TO = ("unstable.commands", "unstable.studies")
"""Rooms with the functions that implement commands."""


def entry_points() -> list[str]:
    """List `module.function` of each function that the command line calls."""
    found = set()
    for path in (ROOT / "unstable/cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(HANDED_TO):
                for alias in node.names:
                    if inspect.isfunction(getattr(import_module(str(node.module)), alias.name)):
                        found.add(f"{node.module}.{alias.name}")
    return sorted(found)


def users_folder(folder: Path, name: str) -> str:
    """Make a folder with the files that a page shows; returns the page."""
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "my.yaml").write_text(blocks("yaml")[0])
    page = (ROOT / name).read_text(encoding="utf-8")
    for file, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        (folder / file).write_text(text)
    return page


def test_documented_config_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_games.py").write_text(MY_GAMES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_games", raising=False)  # of another test
    (text,) = blocks("yaml")
    config = parse(yaml.safe_load(text))
    check_games(config)
    assert config.eval.opponents == ["random", "base"]


def test_documented_commands_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command reaches its function with values that a config accepts."""
    begun: list[tuple[Any, ...]] = []

    def begin(place: str, *arguments: Any, **_: Any) -> Any:
        begun.append(arguments)
        if place.endswith(".prepare"):  # its result is printed
            return SimpleNamespace(config=arguments[0])
        return place.endswith(".audit")  # True: no difference; others return 0 for success

    for place in entry_points():
        monkeypatch.setattr(place, partial(begin, place))
    failed = []
    for name in PAGES:
        page = users_folder(tmp_path / name.replace("/", "_"), name)
        monkeypatch.chdir(tmp_path / name.replace("/", "_"))
        for words in (words for words in commands(page) if words[0] not in PRINTING):
            begun.clear()
            try:
                assert run(words) == 0
                assert begun or "--help" in words
                for options in (each for each in chain(*begun) if isinstance(each, dict)):
                    load_as(ROOTS.get(words[0], RunConfig), "default", options)
            except (ConfigError, AssertionError) as error:
                failed.append((name, words, error))
    assert failed == []


def test_readme_is_short_and_shows_the_main_commands() -> None:
    """README shows a first run, resume and every command about a run in at most 900 words."""
    shown = {words[0] for words in commands(README)}
    assert shown >= {"train", "watch", "runs", "report", "eval", "exploit", "play", "export"}
    assert shown >= {"replay", "doctor", "config"} and "bash run.sh " in README
    assert "--resume" in README and len(README.split()) <= 900


def leads_somewhere(link: str, page: Path) -> bool:
    """Return whether the file that a page links to exists, and the heading in it."""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not anchor or not target.exists():
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
    return anchor in [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]


def test_linked_files_and_headings_exist() -> None:
    docs_reference.write(ROOT / "docs/reference")  # as in the site's build
    missing = []
    for name in PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        links = re.findall(r"\]\((?!http)([^)\s]+)\)", page)
        missing += [(name, link) for link in links if not leads_somewhere(link, ROOT / name)]
        paths = re.findall(r"`((?:unstable|docs|bench|tests)/[\w./]*)`", page)
        missing += [(name, path) for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_every_page_is_in_the_sites_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = set(
        re.findall(r"^\w+$", "".join(re.findall(r"```{toctree}(.*?)```", index, re.DOTALL)), re.M)
    )
    assert listed == {path.stem for path in ROOT.glob("docs/*.md")} - {"index"}
