"""Pages that show a run, and what they show: commands and examples are run, values compared."""

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import unstable
import unstable.games
from unstable.commands.prepare import check_games
from unstable.config import load
from unstable.config.plugins import load_target
from unstable.games.game import Game
from unstable.prompts import load_style, observation_text
from unstable.records.files import read_lines

ROOT = Path(__file__).parent.parent.parent
START = "from unstable.cli import main; main()"


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def command(folder: Path, *words: str, stdin: str = "") -> str:
    """What a command prints that is started in a folder; it ends well."""
    return python(folder, "-c", START, *words, stdin=stdin)


def python(folder: Path, *words: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTHONIOENCODING": "utf-8"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_examples(text: str) -> None:
    """The examples of a page, one after the other, print what stands there."""
    runner = doctest.DocTestRunner()
    examples = "\n".join(blocks("python", text))
    runner.run(doctest.DocTestParser().get_doctest(examples, {}, "the page", None, 0))
    assert runner.summarize().attempted > 0 and runner.summarize().failed == 0


def holds(value: Any, shown: Any) -> bool:
    """Whether a value of a file has all that a page shows of it, numbers to four digits."""
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
    """A folder in which the run of the page of concepts was made."""
    folder = tmp_path_factory.mktemp("docs")
    (line,) = blocks("bash", page("concepts.md"))
    command(folder, *shlex.split(line)[1:], "--tracking.dashboard", "off")
    return folder


# Concepts


def objects(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_lines(path)]


def test_the_values_on_the_page_of_concepts_are_those_of_its_run(folder: Path) -> None:
    text = page("concepts.md")
    shown = re.findall(r"^```json (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(shown) == 5
    for name, part in shown:
        rows = objects(folder / "outputs/datum" / name)
        assert any(holds(row, json.loads(part)) for row in rows), part
    check_examples(text)


def test_the_prompt_on_the_page_of_concepts_is_what_the_player_saw(folder: Path) -> None:
    prompt, loss = blocks("text", page("concepts.md"))
    games = objects(folder / "outputs/datum/games/train-000000.jsonl")
    (game,) = (game for game in games if game["game"] == 16)
    assert game["turns"][0]["observation"] == prompt.strip() and "min(ratio" in loss


def test_the_loss_is_the_sum_of_the_terms_that_the_page_gives(folder: Path) -> None:
    run = folder / "outputs/datum"
    samples, rows = (
        objects(run / "train/000001.jsonl"),
        objects(run / "metrics.jsonl"),
    )
    lengths = [sample["completion_length"] for sample in samples]
    tokens = sum(lengths)
    terms = [
        -sample["advantage"] / tokens * length
        for sample, length in zip(samples, lengths, strict=True)
    ]
    assert tokens == 128 and len(samples) == 64
    assert sum(terms) == pytest.approx(rows[1]["learn/loss"], abs=1e-6)


def test_what_the_page_of_concepts_points_at_is_there() -> None:
    for path in re.findall(r"`(unstable/[\w/.]+)`", page("concepts.md")):
        assert (ROOT / path).exists(), path


# The Python API


def test_the_examples_of_the_python_api_print_what_stands_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    examples = [each for each in blocks("python", page("python_api.md")) if each.startswith(">>>")]
    check_examples("".join(f"```python\n{each}```\n" for each in examples))


def test_the_python_api_lists_what_the_package_gives() -> None:
    of_package, of_games = page("python_api.md").split("## A game of your own")
    for text, module in ((of_package, unstable), (of_games, unstable.games)):
        rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        names = [name for row in rows for name in re.findall(r"`(\w+)[^`]*`", row)]
        assert sorted(names) == sorted(module.__all__)


@pytest.mark.slow
def test_the_script_of_the_python_api_trains(tmp_path: Path) -> None:
    (script,) = (each for each in blocks("python", page("python_api.md")) if each[0] == "#")
    (tmp_path / "mine.py").write_text(script)
    out = python(tmp_path, "mine.py")
    assert "update 1 loss" in out and "outputs/mine [0, 1]" in out


# Troubleshooting, the first run on a GPU


def spoken() -> str:
    """All that the package and its scripts may say, joined strings as one; and tested messages."""
    paths = [*ROOT.glob("unstable/**/*.py"), *ROOT.glob("scripts/*.sh")]
    paths += ROOT.glob("tests/data/*.txt")
    text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    text = re.sub(r'" \\\n\s*"', " ", text)  # as a shell joins words
    return re.sub(r'"\s*\n\s*f?"', "", text)


@pytest.mark.parametrize("name", ["troubleshooting.md", "first_gpu_run.md"])
def test_the_lines_on_a_page_are_what_the_package_says(name: str) -> None:
    said, quoted = spoken(), blocks("text", page(name))
    assert len(quoted) >= 3
    for line in quoted:
        for part in (part.strip() for part in line.strip().split("...")):
            assert part in said, line


def test_the_metrics_that_the_pages_name_exist() -> None:
    known = page("metrics.md")
    for name in ("troubleshooting.md", "first_gpu_run.md", "concepts.md"):
        found = r"[`\"]((?:collect|learn|time|buffer)/[\w/]+)[`\"]"
        for metric in re.findall(found, page(name)):
            assert f"`{metric}`" in known, metric


# Sweeps and leagues


def page_files(folder: Path, name: str) -> None:
    """The files of a page, in a folder."""
    for file, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", page(name), re.M | re.S):
        (folder / file).write_text(text, encoding="utf-8")


def test_the_sweeps_of_the_page_could_begin(tmp_path: Path) -> None:
    page_files(tmp_path, "sweep.md")
    assert command(tmp_path, "sweep", "rates.yaml", "--plan").count("--config tiny_nim") == 4
    assert command(tmp_path, "sweep", "halving.yaml", "--plan").count("--config tiny_nim") == 16


@pytest.mark.slow
def test_the_commands_of_the_page_of_sweeps_make_its_table(tmp_path: Path) -> None:
    page_files(tmp_path, "sweep.md")
    path = tmp_path / "rates.yaml"
    small = (("steps: 12", "steps: 2"), ("every: 6", "every: 1"), ("[1, 2]", "[1]"))
    for more, less in (*small, ("games: 64", "games: 8")):
        path.write_text(path.read_text().replace(more, less))
    path.write_text(f"{path.read_text()}at_once: auto\n")
    lines = blocks("bash", page("sweep.md"))[0].splitlines()
    said = [command(tmp_path, *shlex.split(line, comments=True)[1:]) for line in lines]
    assert len(said) == 5 and "learning_rate-0.0005" in said[1]
    assert said[1] == said[2] == said[3]
    assert (tmp_path / "outputs/rates/report.html").is_file()


def test_the_leagues_of_the_page_could_begin(tmp_path: Path) -> None:
    page_files(tmp_path, "league.md")
    assert command(tmp_path, "league", "rivals.yaml", "--plan").count("--config tiny_nim") == 9
    said = command(tmp_path, "league", "three.yaml", "--plan")
    assert said.count("--config tiny_nim") == 9
    assert said.splitlines()[-1].count("name: middle-") == 2


@pytest.mark.slow
def test_the_commands_of_the_page_of_leagues_make_its_table(tmp_path: Path) -> None:
    page_files(tmp_path, "league.md")
    path = tmp_path / "rivals.yaml"
    fast = "games: 8, learner.batch_size: 64, eval.exploitability.every: 0"
    small = (("generations: 3", "generations: 1"), ("updates: 4", "updates: 1"))
    for more, less in (("games: 64", fast), ("every: 4", "every: 1"), *small):
        path.write_text(path.read_text().replace(more, less))
    lines = blocks("bash", page("league.md"))[0].splitlines()
    said = [command(tmp_path, *shlex.split(line, comments=True)[1:]) for line in lines]
    assert len(said) == 5 and "against exploiter" in said[1]
    assert said[1] == said[2] == said[3] == said[4]
    (tournament,) = (line for line in said[1].splitlines() if line.startswith("all against all: "))
    words = shlex.split(tournament.partition(": ")[2])[1:]
    found = command(tmp_path, *words, "--games", "60")
    assert "main/generation-1" in found and "scout/generation-1" in found


# The tutorial


@pytest.fixture
def sticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tutorial's files, and the game that it begins with."""
    for name in ("adding_a_game.md", "tutorial.md"):
        files = r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$"
        for file, text in re.findall(files, page(name), re.MULTILINE | re.DOTALL):
            (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("my_games", "sticks"):  # another test may have left one of that name
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_the_tutorials_game_prompt_and_bot_fit_together(sticks: Path) -> None:
    """What the style shows and its parser reads plays the game; the bot beats any other move."""
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
def test_the_tutorials_commands_lead_to_a_model_to_play_against(sticks: Path) -> None:
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
        for option, value in zip(less[::2], less[1::2], strict=True):  # in place of what is given
            place = words.index(option) if option in words else len(words)
            words[place : place + 2] = [option, value]
        said = command(sticks, *words, stdin="1\n" * 20)
        assert name != "doctor" or "ok       would make 30 updates" in said
    assert (sticks / "outputs/sticks/report.html").is_file()
