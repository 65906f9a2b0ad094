"""The tutorials of the first run, the own loop and evaluation: their commands, in small."""

import shutil
from pathlib import Path

import pytest

from scripts import pictures
from tests.helpers.locally import locally
from tests.helpers.pages import ROOT, blocks, commands
from tests.helpers.terminals import typed
from unstable.cli import run
from unstable.records.folder import RunFolder

LESS = {
    "train": "--loop.steps 1 --learner.batch_size 64 --eval.games 8 --eval.exploitability.every 0",
    "eval": "--eval.games 8",
    "tournament": "--deals 2",
}
"""Options in place of a page's, or in addition to them."""


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text("utf-8")


def smaller(words: list[str]) -> list[str]:
    if "--resume" in words:
        return [*words[:-1], "2"]
    options, kept = LESS.get(words[0], "").split(), list(words)
    if "--baseline" in kept:
        kept[kept.index("--baseline") + 1] = "1"  # the last version
    for option, value in zip(options[::2], options[1::2], strict=True):
        place = kept.index(option) if option in kept else len(kept)
        kept[place : place + 2] = [option, value]
    return kept


def run_all(page: str, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Run a page's commands in small; return the output of all of each kind."""
    printed: dict[str, str] = {}
    for words in map(smaller, commands(text_of(page))):
        with typed("4\n"), locally():
            status = run(words)
        assert status == 0 or (words[0] == "play" and status == 130), "its input ends"
        printed[words[0]] = printed.get(words[0], "") + "".join(capfd.readouterr())
    return printed


@pytest.mark.slow
def test_first_run_is_evaluated_played_and_resumed(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = run_all("first_run.md", capfd)
    assert "outputs/first" in printed["runs"] and "random: score" in printed["eval"]
    assert RunFolder(here / "outputs/first").versions() == [0, 1, 2]


@pytest.mark.slow
def test_two_runs_are_compared(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The pictures of the gallery are taken of these runs, too."""
    printed = run_all("evaluate.md", capfd)
    assert "duration unknown until update 1 of 1" in printed["train"]
    assert "exploitability of version 1" in printed["exploit"]
    assert all(name in printed["tournament"] for name in ("with_kl:1", "weak_kl:1", "expert"))
    assert (here / "compare.html").stat().st_size > 500_000
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed: bash scripts/browser.sh")
    (tournament,) = here.glob("outputs/tournament-*")
    words = ("outputs/with_kl", "--tournament", str(tournament), "--out", ".")
    pictures.main(words)
    pictures.main([*words, "--dashboard"])
    taken = ("report.png", "viewer.png", "tournament.png", "dashboard.svg")
    assert all((here / name).stat().st_size > 10_000 for name in taken)


@pytest.mark.slow
def test_loop_of_the_tutorial_chooses_recent_versions(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (script,) = (each for each in blocks("python", text_of("own_loop.md")) if each[0] == "#")
    with locally():
        exec(script.replace("1024", "64"), {})
    assert "main@4: opponents ['main@1', 'main@2']" in capfd.readouterr().out
