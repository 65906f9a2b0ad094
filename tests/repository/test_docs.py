"""Documentation: its commands and examples run, and its values equal those of a run."""

import ast
import doctest
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import unstable
import unstable.games
from scripts.docs_reference import BLOCK, failures, fault_tests, filled
from tests.helpers.cli import background, run_locally, wait_for, written
from tests.helpers.locally import locally
from tests.helpers.records import flat
from tests.helpers.resume import rows, weights
from tests.helpers.terminals import typed
from unstable.cli import run
from unstable.commands.prepare import check_games
from unstable.config import load
from unstable.config.plugins import load_target
from unstable.games.game import Game
from unstable.prompts import load_style, observation_text
from unstable.records.files import read_lines
from unstable.studies.league.members import LeagueFolder
from unstable.studies.sweep.trials import SweepFolder
from unstable.types.metrics import GROUPS, METRICS, metric

ROOT = Path(__file__).parent.parent.parent


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def command(folder: Path, *words: str) -> str:
    """Run a command in a folder and return its output, after asserting that it succeeds."""
    done = run_locally(folder, *words)
    return done.stdout


def check_examples(text: str) -> None:
    """Check that a page's examples, run in order, print the documented output."""
    runner = doctest.DocTestRunner()
    examples = "\n".join(blocks("python", text))
    runner.run(doctest.DocTestParser().get_doctest(examples, {}, "the page", None, 0))
    assert runner.summarize().attempted > 0 and runner.summarize().failed == 0


def holds(value: Any, shown: Any) -> bool:
    """Return whether a file's value contains all that a page shows of it, within rounding."""
    if isinstance(shown, dict):
        return isinstance(value, dict) and all(
            name in value and holds(value[name], each) for name, each in shown.items()
        )
    if isinstance(shown, list):
        return (
            isinstance(value, list) and len(value) == len(shown) and all(map(holds, value, shown))
        )
    if isinstance(shown, float):
        return bool(value == pytest.approx(shown, rel=1e-3, abs=1e-5))
    return bool(value == shown)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the concepts page's run in a folder."""
    folder = tmp_path_factory.mktemp("docs")
    (line,) = blocks("bash", page("concepts.md"))
    command(folder, *shlex.split(line)[1:], "--tracking.dashboard", "off")
    return folder


# Concepts


def objects(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_lines(path)]


def test_concepts_page_shows_real_values_and_prompts(folder: Path) -> None:
    text = page("concepts.md")
    shown = re.findall(r"^```json (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(shown) == 5
    for name, part in shown:
        rows = objects(folder / "outputs/datum" / name)
        assert any(holds(row, json.loads(part)) for row in rows), part
    check_examples(text)
    prompt, loss = blocks("text", page("concepts.md"))
    games = objects(folder / "outputs/datum/games/train-000000.jsonl")
    (game,) = (game for game in games if game["spec"]["game"] == 16)
    assert game["turns"][0]["answer"]["observation"] == prompt.strip() and "min(ratio" in loss


def test_loss_is_the_sum_of_the_documented_terms(folder: Path) -> None:
    run = folder / "outputs/datum"
    samples, rows = (objects(run / "train/000001.jsonl"), objects(run / "metrics.jsonl"))
    lengths = [sample["completion_length"] for sample in samples]
    tokens = sum(lengths)
    terms = [
        -sample["advantage"] / tokens * length
        for sample, length in zip(samples, lengths, strict=True)
    ]
    assert tokens == 128 and len(samples) == 64
    assert sum(terms) == pytest.approx(rows[1]["learn/loss"], abs=1e-6)


# The Python API


def test_api_examples_print_their_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    examples = [each for each in blocks("python", page("python_api.md")) if each.startswith(">>>")]
    check_examples("".join(f"```python\n{each}```\n" for each in examples))


def test_api_page_lists_all_public_names() -> None:
    of_package, of_games = page("python_api.md").split("## A game of your own")
    for text, module in ((of_package, unstable), (of_games, unstable.games)):
        rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        names = [name for row in rows for name in re.findall(r"`(\w+)[^`]*`", row)]
        assert sorted(names) == sorted(module.__all__)


@pytest.mark.slow
@pytest.mark.one_core
def test_documented_api_script_trains(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = (each for each in blocks("python", page("python_api.md")) if each[0] == "#")
    with locally():
        exec(script, {})
    out = capsys.readouterr().out
    assert "update 1 loss" in out and "outputs/mine [0, 1]" in out


# Troubleshooting, the first run on a GPU


def spoken() -> str:
    """Return the package, its scripts and the tested messages as text, adjacent strings joined."""
    paths = [*ROOT.glob("unstable/**/*.py"), *ROOT.glob("scripts/*.sh")]
    paths += ROOT.glob("tests/data/*.txt")
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    text = re.sub(r'" \\\n\s*"', " ", text)  # joined by the shell
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize("name", ["troubleshooting.md", "first_gpu_run.md"])
def test_quoted_messages_exist_in_the_package(name: str) -> None:
    said, quoted = spoken(), blocks("text", page(name))
    assert len(quoted) >= 3
    for line in quoted:
        for part in (part.strip() for part in line.strip().split("...")):
            assert part in said, line


def test_documented_metrics_are_declared_and_tables_up_to_date() -> None:
    for name in ("troubleshooting.md", "first_gpu_run.md", "concepts.md"):
        named = r"[`\"]((?:collect|learn|time|buffer)/[\w/]+)[`\"]"
        for found in re.findall(named, page(name)):
            assert metric(found) is not None, found
    assert filled(page("metrics.md")) == page("metrics.md")
    tables = [each[2] for each in BLOCK.finditer(page("metrics.md"))]
    assert sorted(tables) == sorted(["row", *GROUPS])
    assert len(METRICS) == len({each.name for each in METRICS}) > 200


def test_every_metric_in_the_code_is_declared() -> None:
    """All literal metric names are declared; other tests check the names that code composes."""
    name = re.compile(rf"(?:{'|'.join(GROUPS)})/[\w/]*\w")
    undeclared = {
        (path.name, text)
        for path in (ROOT / "unstable").rglob("*.py")
        for text in _texts(ast.parse(path.read_text(encoding="utf-8")))
        if name.fullmatch(text) and not is_declared(text)
    }
    own = {("wandb.py", "eval/games"), ("rules.py", "collect/versus/forfeit")}
    assert undeclared == own, "a W&B table, and a sum of the guard"


def is_declared(text: str) -> bool:
    """Return whether this is a metric's name, or its prefix before a part that the run supplies."""
    begun = (each.name.startswith(f"{text}/<") for each in METRICS)
    return metric(text) is not None or any(begun)


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the string constants of a tree, except parts of f-strings."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.value
    elif not isinstance(tree, ast.JoinedStr):
        for child in ast.iter_child_nodes(tree):
            yield from _texts(child)


def test_each_listed_failure_has_a_test_that_injects_it() -> None:
    assert sorted(fault_tests()) == sorted(failures())


# Sweeps and leagues


def page_files(folder: Path, name: str) -> None:
    """Write the files of a page to a folder."""
    for file, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", page(name), re.M | re.S):
        (folder / file).write_text(text, encoding="utf-8")


def test_documented_sweeps_can_be_planned(tmp_path: Path) -> None:
    page_files(tmp_path, "sweep.md")
    assert command(tmp_path, "sweep", "rates.yaml", "--plan").count("--config tiny_nim") == 4
    assert command(tmp_path, "sweep", "halving.yaml", "--plan").count("--config tiny_nim") == 16


def commands(name: str) -> list[list[str]]:
    """Return the words of each command in a page's first block."""
    lines = blocks("bash", page(name))[0].splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines]


def kill_once(is_there: Callable[[], bool], folder: Path, words: list[str]) -> None:
    """Start a command, kill it once `is_there` is true, and wait for the end of its processes."""
    process = background(folder, words)
    wait_for(is_there, process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not alive, "left behind"


def small_sweep(settings: str, at_once: int | str) -> str:
    """Return the page's sweep, made small, with settings in place of its grid."""
    common = "{eval.every: 2, eval.games: 8, eval.exploitability.every: 0, learner.batch_size: 64}"
    text = blocks("yaml", page("sweep.md"))[0].replace("[1, 2]", "[1]")
    text = re.sub("^common: .*", f"common: {common}\nat_once: {at_once}", text, flags=re.MULTILINE)
    return re.sub("^grid: .*\n", settings, text, flags=re.MULTILINE)


@pytest.mark.tables("studies", 0)
@pytest.mark.slow
@pytest.mark.fault("a sweep or league is killed")
def test_killed_sweep_resumes_with_documented_commands(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run and a league resume; the run has the same weights and rows, except for times."""
    monkeypatch.chdir(project)
    (two,) = (each for each in blocks("yaml", page("sweep.md")) if each.startswith("settings:"))
    two = two.replace("generations: 2, updates: 3", "generations: 1, updates: 2")
    Path("rates.yaml").write_text(small_sweep(two, "auto"))
    Path("whole.yaml").write_text(small_sweep(two.partition("  - name: exploiter")[0], 2))
    plan, new, resumed, retried, shown = commands("sweep.md")
    assert run(plan) == 0 and "--loop.steps 12" in capsys.readouterr().out
    sweep = SweepFolder(project / "outputs/rates")
    mirror = sweep.run("mirror-seed1")
    kill_once(lambda: written(mirror.metrics) > 3, project, new)
    with locally():
        assert run(["sweep", "whole.yaml", "--out", "whole"]) == 0
        capsys.readouterr()
        assert run(resumed) == 0
    said = capsys.readouterr()
    assert "mirror-seed1 resumes" in said.err and "exploiter" in said.out
    assert run(retried) == 0 and capsys.readouterr().out == said.out
    assert run(shown) == 0 and said.out.startswith(capsys.readouterr().out)
    whole = SweepFolder(project / "whole").run("mirror-seed1")
    assert weights(mirror, 12) == weights(whole, 12) and rows(mirror) == rows(whole)
    league = LeagueFolder(sweep.run("exploiter-seed1").root)
    assert all(league.run(name).versions() == [0, 1, 2] for name in ("main-1", "exploiter-1"))
    assert sweep.report.stat().st_size > 500_000
    assert run([*shown[:-1], "--json"]) == 0
    one, other = json.loads(capsys.readouterr().out)["settings"]
    assert [each["state"] for setting in (one, other) for each in setting["runs"]] == ["done"] * 2
    assert one["end"]["mean"] == one["runs"][0]["values"][-1][1]
    assert other["difference"]["low"] is None


def test_documented_leagues_can_be_planned(tmp_path: Path) -> None:
    page_files(tmp_path, "league.md")
    assert command(tmp_path, "league", "rivals.yaml", "--plan").count("--config tiny_nim") == 9
    said = command(tmp_path, "league", "three.yaml", "--plan")
    assert said.count("--config tiny_nim") == 9
    assert said.splitlines()[-1].count("name: middle-") == 2


@pytest.mark.tables("studies", 2)
@pytest.mark.slow
@pytest.mark.fault("a sweep or league is killed")
def test_killed_league_resumes_with_documented_commands(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the second generation, whose run resumes to identical weights and games.

    The page's exploiter is left out; the league of the sweep above has one.
    """
    monkeypatch.chdir(project)
    page_files(project, "league.md")
    text = Path("rivals.yaml").read_text().replace("  exploiter: {role: exploiter}\n", "")
    fast = "games: 8, learner.batch_size: 64, eval.exploitability.every: 0"
    small = (
        ("games: 64", fast),
        ("generations: 3", "generations: 2"),
        ("updates: 4", "updates: 3"),
    )
    for more, less in (*small, ("every: 4", "every: 3")):
        text = text.replace(more, less)
    Path("rivals.yaml").write_text(text)
    plan, new, resumed, retried, shown = commands("league.md")
    assert run(plan) == 0 and capsys.readouterr().out.count("--config tiny_nim") == 4
    league = LeagueFolder(project / "outputs/rivals")
    second = league.run("main-2")
    kill_once(lambda: bool(second.versions()) and len(rows(second)) > 1, project, new)
    assert not league.run("scout-2").root.exists()
    with locally():
        assert run(resumed) == 0
    said = capsys.readouterr().out
    assert "against scout" in said
    for words in (retried, shown):
        assert run(words) == 0 and capsys.readouterr().out == said

    own = {"tracking.run_dir": str(project / "whole"), "tracking.dashboard": "off"}
    with locally():
        whole = unstable.train(load(str(second.config), own))
    last = max(whole.versions())
    assert weights(second, last) == weights(whole, last) and rows(second) == rows(whole)
    assert [*played_in(second)] == [*played_in(whole)]
    assert [each.key for each in load(str(second.config)).opponents.fixed] == ["main-1", "scout-1"]
    assert weights(second, 0) == weights(league.run("main-1"), last)
    capsys.readouterr()
    assert run([*shown[:-1], "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["runs"]
    assert [each["state"] for each in told] == ["done"] * 4
    assert told[3]["against"]["main"]["score"]["mean"] >= 0
    (tournament,) = (line for line in said.splitlines() if line.startswith("tournament: "))
    with locally():
        assert run([*shlex.split(tournament.partition(": ")[2])[1:], "--games", "60"]) == 0
    found = capsys.readouterr().out
    assert "main/generation-1" in found and "scout/generation-2" in found


def played_in(folder: unstable.RunFolder) -> list[tuple[Any, ...]]:
    """Return all games by number: seats, outcomes and answers."""
    found = []
    for file in folder.game_files():
        for _, row in read_lines(file.path):
            each = flat(row)
            answers = [turn["text"] for turn in each["turns"]]
            found.append((file.path.name, each["game"], each["players"], each["outcomes"], answers))
    return sorted(found)


# The tutorial


@pytest.fixture
def sticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the tutorial's files and the game that it starts with."""
    for name in ("adding_a_game.md", "tutorial.md"):
        files = r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$"
        for file, text in re.findall(files, page(name), re.MULTILINE | re.DOTALL):
            (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("my_games", "sticks"):  # possibly loaded by another test
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_tutorial_game_style_and_bot_play_together(sticks: Path) -> None:
    """The style's prompts and parser play the game; the bot wins from each winning position."""
    config = load("sticks.yaml", {"model.name": "tiny"})
    check_games(config)
    style, perfect = load_style("sticks:SHORT"), load_target("sticks:Perfect")()
    for seed in range(8):
        game = Game(config.games[0], seed)
        left = int(game.observe().board.split()[0])
        winner = game.seat if left % 4 != 1 else 1 - game.seat
        while not game.done:
            seen = game.observe()
            assert re.fullmatch(r"\d+ sticks are left\.", style.render(seen).strip())
            asked = perfect(observation_text(seen)) if game.seat == winner else "[3]"
            action = asked if asked in game.legal_moves() else "[1]"
            assert style.read_action(action.strip("[]")).text == action
            game.step(action)
        assert game.outcomes[winner] == 1.0


@pytest.mark.slow
@pytest.mark.one_core
def test_tutorial_commands_train_a_model(sticks: Path, capfd: pytest.CaptureFixture[str]) -> None:
    small = {
        "world": "--world.steps 30 --world.games 20 --world.score_games 0",
        "train": "--steps 1 --learner.batch_size 64 --eval.every 0 --tracking.dashboard off",
    }
    lines = "\n".join(blocks("bash", page("tutorial.md"))).splitlines()
    given = [shlex.split(line, comments=True)[1:] for line in lines if line]
    names = [words[0] for words in given]
    assert names == ["play", "world", "doctor", "train", "report", "runs", "play", "play"]
    for name, words in zip(names, given, strict=True):
        less = small.get(name, "").split()
        for option, value in zip(less[::2], less[1::2], strict=True):  # replace given options
            place = words.index(option) if option in words else len(words)
            words[place : place + 2] = [option, value]
        with typed("1\n" * 20), locally():
            assert run(words) == 0
        said = capfd.readouterr().out
        assert name != "doctor" or "ok       would make 30 updates" in said
    assert (sticks / "outputs/sticks/report.html").is_file()
