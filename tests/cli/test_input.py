"""Every mistake in user input yields one line with field, value and remedy; never a traceback."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.main import get_command

from tests.helpers.cli import in_process
from tests.helpers.hostile import CHECKED, FILES, OPTIONS
from unstable.cli import parse_options, run
from unstable.cli.commands import app
from unstable.cli.options import loaded_run
from unstable.commands.prepare import check
from unstable.config import CONFIGS, ConfigError, RunConfig, dump, fields, load, load_as


def is_expected(line: str, expected: str) -> bool:
    """Return whether `line` is one line that matches `expected`; `...` matches any words."""
    pattern = ".*".join(map(re.escape, expected.split("...")))
    is_one = len(line.splitlines()) == 1 and line.isprintable() and len(line) < 500
    return is_one and re.fullmatch(pattern, line) is not None


def answer(call: Callable[..., object], *arguments: Any) -> str:
    """The line that a mistake is answered with."""
    try:
        call(*arguments)
    except ConfigError as error:
        return str(error)
    except Exception as error:
        return repr(error)
    return "it is accepted"


def refused(rows: Iterable[tuple[str, str]]) -> None:
    """Every row is an answer and the line that is expected."""
    assert [row for row in rows if not is_expected(*row)] == []


def test_what_is_named_decides_what_a_run_begins_with() -> None:
    first, plain = load("first_run", {"seed": 4}), load("default", {"seed": 4})
    assert loaded_run(RunConfig, None, {"seed": 4}) == first != plain
    assert loaded_run(RunConfig, "default", {"seed": 4}) == plain
    for path, value in {
        "games.0.env": "Nim-v0",
        "games": [{"env": "Nim-v0"}],
        "model.name": "tiny",
        "learner.algorithm.name": "grpo",
    }.items():
        assert loaded_run(RunConfig, None, {path: value}) == load("default", {path: value})


def test_wrong_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def accepted(root: type[RunConfig], name: str, options: dict[str, Any]) -> NoReturn:
        load_as(root, name, options)
        raise AssertionError("the options are accepted")

    monkeypatch.setattr("unstable.cli.options.load_as", accepted)  # which must not begin to train
    assert len(OPTIONS) >= 55
    refused((answer(run, arguments), line) for arguments, line in OPTIONS)


def test_wrong_files(tmp_path: Path) -> None:
    def rows() -> Iterable[tuple[str, str]]:
        for number, (_, content, line) in enumerate(FILES):
            file = tmp_path / f"{number}.yaml"
            file.write_bytes(content)
            yield answer(load, str(file)), f"--config = '{file}': {line}"

    refused(rows())


def test_what_cannot_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "any")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def tried(arguments: list[str]) -> None:
        check(load("tiny", parse_options(arguments, {})))

    assert len(CHECKED) >= 50
    refused((answer(tried, arguments), line) for arguments, line in CHECKED)


# The real command line.

FORKS = """
import atexit, gc, json, os, sys
import unstable.commands.session
from unstable.cli import main
gc.freeze()  # so that a fork does not copy all pages as it ends
for number, line in enumerate(sys.stdin):
    if os.fork() == 0:
        for name, descriptor in (("modules", 1), ("error", 2)):
            os.dup2(os.open(f"{number}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        atexit.register(lambda: print(*sys.modules))
        sys.argv[1:] = json.loads(line)
        main()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""A process of its own for each command line, all forked before `main` has imported anything."""


def test_a_mistake_is_one_line_of_every_command_without_a_library(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"learner:\n  epochs: 1\nlearner:\n  epochs: 2\n")
    lines = [
        ["train", "--config", "x.yaml"],
        ["sft", "--learner.epochs", "0"],
        ["doctor", "--config", "default", "foo"],
        ["config", "--seed", "1e999"],
        ["eval", "run", "--version", "x"],
        *([name, "--nonsense"] for name in get_command(app).commands),  # type: ignore[attr-defined]
    ]
    command, told = [sys.executable, "-c", FORKS], "\n".join(map(json.dumps, lines))
    done = subprocess.run(command, cwd=tmp_path, input=told, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.split() == ["2"] * len(lines)
    heavy = {"torch", "transformers", "ray", "textarena", "vllm", "openai"}
    for number, line in enumerate(lines):
        (error,) = (tmp_path / f"{number}.error").read_text().splitlines()
        assert error.startswith("error: "), line
        modules = (tmp_path / f"{number}.modules").read_text().split()
        assert modules and heavy.isdisjoint(name.partition(".")[0] for name in modules), line


def test_an_unknown_game_is_one_line(here: Path) -> None:
    line = "games.0.env = 'Nope-v0': unknown TextArena id; did you mean '...'?"
    commands = ("config", "sft", "play")
    refused((answer(run, [each, "--games.0.env", "Nope-v0"]), line) for each in commands)
    assert not [*here.iterdir()]


def test_a_module_that_ends_the_process_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "x.yaml").write_text("games: [{env: 'mine:Game'}]\n")
    done = in_process(tmp_path, "train", "--config", "x.yaml")
    assert done.returncode == 2
    assert done.stderr == (
        "error: games.0.env = 'mine:Game': importing mine raises SystemExit 7; mend it there\n"
    )
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"mine.py", "x.yaml"}


# Whatever else.

whatever = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PATHS = sorted({option.path.replace(".N", ".0") for option in fields(RunConfig)})
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "fresh", "random", "a:b", "\0", "~x/y", "x" * 300, "inf", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@whatever
@given(st.dictionaries(st.sampled_from(PATHS), JUNK, min_size=1, max_size=4))
def test_any_values_are_a_line_or_a_config(tmp_path: Path, overrides: dict[str, Any]) -> None:
    try:
        config = load("default", overrides)
    except ConfigError as error:
        line = str(error)
        assert len(line.splitlines()) == 1 and len(line) < 2000
    else:
        file = tmp_path / "config.yaml"
        file.write_text(dump(config), encoding="utf-8")
        assert load(str(file)) == config


SHIPPED = [path.read_bytes() for path in sorted(CONFIGS.glob("*.yaml"))]


@whatever
@given(st.data(), st.booleans())
def test_any_bytes_are_one_or_none(tmp_path: Path, data: st.DataObject, of_a_run: bool) -> None:
    """Noise, and configs with noise in them; as a person's file and as one that a run wrote."""
    noise = data.draw(
        st.binary(max_size=12) | st.text("{}[]&*!:-\n '\"%@#1a", max_size=12).map(str.encode)
    )
    text = data.draw(st.sampled_from([b"", *SHIPPED]))
    at = data.draw(st.integers(0, len(text)))
    folder = tmp_path / ("run" if of_a_run else "own")
    (folder / "checkpoints" if of_a_run else folder).mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_bytes(
        text[:at] + noise + text[at + data.draw(st.integers(0, 9)) :]
    )
    try:
        assert isinstance(load(str(folder / "config.yaml")), RunConfig)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
