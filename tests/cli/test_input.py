"""Whatever a person gives, a mistake is one line: field, value and remedy; never a traceback."""

import re
import subprocess
import sys
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.hostile import ADAPTERS, CHECKED, FILES, OPTIONS, ZIPS, adapter_files, zip_file
from unstable.cli import parse_options, run
from unstable.cli.options import loaded_run
from unstable.commands.prepare import check
from unstable.config import CONFIGS, ConfigError, RunConfig, dump, fields, load
from unstable.models.archive import misfit, unpack


def refused(error: object, expected: str) -> None:
    """The error is one line, and the one that is expected; `...` stands for any words."""
    line = str(error)
    assert len(line.splitlines()) == 1 and line.isprintable() and len(line) < 500
    pattern = ".*".join(map(re.escape, expected.split("...")))
    assert re.fullmatch(pattern, line), line


def test_the_table_is_long() -> None:
    tables: list[Sized] = [OPTIONS, FILES, CHECKED, ADAPTERS, ZIPS]
    assert sum(len(table) for table in tables) >= 130


def test_what_is_named_decides_what_a_run_begins_with() -> None:
    first, plain = load("first_run", {"seed": 4}), load("default", {"seed": 4})
    assert loaded_run(None, {"seed": 4}) == first != plain == loaded_run("default", {"seed": 4})
    for path, value in {
        "games.0.env": "Nim-v0",
        "games": [{"env": "Nim-v0"}],
        "model.name": "tiny",
        "learner.algorithm.name": "grpo",
    }.items():
        assert loaded_run(None, {path: value}) == load("default", {path: value})


@pytest.mark.parametrize(("arguments", "line"), OPTIONS, ids=[" ".join(a)[:60] for a, _ in OPTIONS])
def test_a_wrong_option(
    arguments: Sequence[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accepted(name: str, options: dict[str, Any]) -> NoReturn:
        load(name, options)
        pytest.fail("the options are accepted")

    monkeypatch.setattr("unstable.cli.options.load", accepted)  # which must not begin to train
    with pytest.raises(ConfigError) as error:
        run(arguments)
    refused(error.value, line)


@pytest.mark.parametrize(("name", "content", "line"), FILES, ids=[name for name, _, _ in FILES])
def test_a_wrong_file(name: str, content: bytes, line: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load(str(file))
    refused(error.value, f"--config = '{file}': {line}")


@pytest.mark.parametrize(("arguments", "line"), CHECKED, ids=[" ".join(a)[:60] for a, _ in CHECKED])
def test_what_cannot_run(
    arguments: Sequence[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_KEY", "any")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError) as error:
        check(load("tiny", parse_options(arguments, {})))
    refused(error.value, line)


@pytest.mark.parametrize(("name", "changes", "line"), ADAPTERS, ids=[n for n, _, _ in ADAPTERS])
@pytest.mark.parametrize("place", ["model.init", "opponents.fixed.0.path"])
def test_a_wrong_adapter(
    name: str, changes: dict[str, Any], line: str, place: str, tmp_path: Path
) -> None:
    adapter_files(tmp_path, **changes)
    overrides: dict[str, Any] = {"games.0.env": "Nim-v0", place: str(tmp_path)}
    if place != "model.init":
        overrides["opponents.fixed.0.kind"] = "checkpoint"
    with pytest.raises(ConfigError) as error:
        check(load("tiny", overrides))
    refused(error.value, f"{place} = '{tmp_path}': {line}")


@pytest.mark.parametrize(("name", "base", "line"), ZIPS, ids=[name for name, _, _ in ZIPS])
def test_a_zip_that_says_nonsense_of_its_base(
    name: str, base: bytes, line: str, tmp_path: Path
) -> None:
    unpack(zip_file(tmp_path / "a.zip", base), tmp_path / "a")
    refused(misfit(tmp_path / "a", load("tiny").model), line)


# The real command line.


def unstable(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    code = (
        "import atexit, sys\n"
        "from unstable.cli import main\n"
        "atexit.register(lambda: print(*sys.modules))\n"
        "main()"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


def test_a_config_error_waits_for_no_library(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"learner:\n  epochs: 1\nlearner:\n  epochs: 2\n")
    for command, *arguments in (
        ("train", "--config", "x.yaml"),
        ("sft", "--learner.epochs", "0"),
        ("doctor", "--config", "default", "foo"),
        ("config", "--seed", "1e999"),
        ("eval", "run", "--version", "x"),
    ):
        done = unstable(tmp_path, command, *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
        loaded = {name.partition(".")[0] for name in done.stdout.split()}
        assert loaded & {"torch", "transformers", "ray", "textarena", "vllm", "openai"} == set()


@pytest.mark.parametrize("command", ["config", "sft", "play"])
def test_a_game_that_is_not_there_is_one_line_of_every_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as raised:
        run([command, "--games.0.env", "Nope-v0"])
    refused(raised.value, "games.0.env = 'Nope-v0': no such TextArena id; did you mean '...'?")
    assert not [*tmp_path.iterdir()]


def test_a_module_that_ends_the_process_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "x.yaml").write_text("games: [{env: 'mine:Game'}]\n")
    done = unstable(tmp_path, "train", "--config", "x.yaml")
    assert done.returncode == 2
    assert done.stderr == (
        "error: games.0.env = 'mine:Game': importing mine raises SystemExit 7; mend it there\n"
    )
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"mine.py", "x.yaml"}


# Whatever else.

whatever = settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
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


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(st.sampled_from(PATHS), JUNK, min_size=1, max_size=4))
def test_any_values_are_refused_in_one_line_or_are_a_config_that_reads_back(
    tmp_path: Path, overrides: dict[str, Any]
) -> None:
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


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data(), st.booleans())
def test_any_bytes_are_refused_in_one_line_or_are_a_config(
    tmp_path: Path, data: st.DataObject, of_a_run: bool
) -> None:
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
