"""Real processes are killed at any point; the resumed run equals an uninterrupted one."""

import json
import os
import random
import signal
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.victim import STEPS, left_by, main
from tests.helpers.cli import PATIENCE_S
from tests.helpers.forks import FORKS
from tests.helpers.records import flat
from tests.helpers.resume import rows, trained_on, weights
from unstable.records.folder import RunFolder

KILLS = 8
"""Kills of each run, spread over its updates, each at a random point within an update.
`test_resume.py` ends a run at many chosen events.
"""
LARGEST = 1.63
"""Kolmogorov-Smirnov bound at the 1 % level, for the distance times the root of half the size."""


def begin(model: Path, run_dir: Path, mode: str) -> BaseProcess:
    process = FORKS.Process(target=main, args=(model, run_dir, mode))
    process.start()
    return process


def progress(folder: RunFolder) -> int:
    """Measure a run's progress: bytes of recorded games plus number of checkpoint files."""
    games = sum(path.stat().st_size for path in (folder.root / "games").glob("*.jsonl"))
    return games + sum(len(files) for *_, files in os.walk(folder.checkpoints))


def finished(folder: RunFolder, purpose: str = "train") -> dict[int, Any]:
    """Return the recorded games by id; ignores partial lines, rejects repeated training games."""
    found: dict[int, Any] = {}
    for path in sorted((folder.root / "games").glob(f"{purpose}-*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                game = flat(json.loads(line))
                assert purpose == "eval" or game["game"] not in found, "a game was recorded twice"
                found[game["game"]] = game
    return found


def killed_again_and_again(model: Path, run_dir: Path, mode: str) -> tuple[RunFolder, int]:
    """Kill a run up to `KILLS` times, each after some progress of its files.

    The kill is immediate if too few updates are left for the remaining kills.
    """
    chance, folder, kills = random.Random(f"chaos {mode}"), RunFolder(run_dir), 0
    before: set[int] = set()
    while True:
        seen = progress(folder)
        process = begin(model, run_dir, mode)
        if kills < KILLS:
            moves, deadline = chance.randrange(1, 40), time.monotonic() + PATIENCE_S
            share = STEPS * (kills + 1) // (KILLS + 1)
            while process.is_alive() and moves > 0:
                now = progress(folder)
                is_late = folder.versions()[-1:] > [share]
                moves -= (moves if is_late else 1) * (now != seen)
                seen = now
                time.sleep(chance.random() * 0.004)
                assert time.monotonic() < deadline, "no progress"
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        process.join(timeout=PATIENCE_S)
        if mode == "async":
            assert before <= finished(folder).keys(), "a finished game is missing"
            before = set(finished(folder))
        if process.exitcode == 0:
            return folder, kills
        assert process.exitcode == -signal.SIGKILL, (run_dir.parent / "run.txt").read_text()


def moves_of(games: dict[int, Any]) -> dict[int, list[str]]:
    return {number: [turn["action"] for turn in game["turns"]] for number, game in games.items()}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_repeatedly_killed_run_loses_nothing(tiny_folder: Path, tmp_path: Path, mode: str) -> None:
    whole = RunFolder(tmp_path / "whole")
    process = begin(tiny_folder, whole.root, mode)
    process.join(timeout=PATIENCE_S)
    assert process.exitcode == 0, (tmp_path / "whole.txt").read_text()
    folder, kills = killed_again_and_again(tiny_folder, tmp_path / "run", mode)
    assert kills == KILLS

    assert [row["version"] for row in rows(folder)] == [*range(STEPS + 1)]
    ids, wholes = moves_of(finished(folder)), moves_of(finished(whole))
    trained = trained_on(folder)
    assert max(Counter(trained).values()) == 1
    assert {game for game, _ in trained} <= ids.keys()
    assert len(finished(folder, "eval")) == 4
    if mode == "sync":
        assert weights(folder, STEPS) == weights(whole, STEPS)
        assert rows(folder) == rows(whole)
        assert ids == wholes
        return
    # Both runs have the same games; missing ones were in flight at the end.
    both = ids.keys() & wholes.keys()
    assert len(both) > 300
    assert all(ids[number] == wholes[number] for number in both)
    for each in (folder, whole):
        left = json.loads(left_by(each.root).read_text())
        assert {*range(left["dealt"])} - finished(each).keys() == {*left["in_flight"]}
        assert len(left["in_flight"]) <= 2 * 16
    for of in (played_lengths, trained_lengths):
        mine, other = of(folder), of(whole)
        apart = distance(mine, other)
        assert apart < LARGEST * (1 / len(mine) + 1 / len(other)) ** 0.5, (of.__name__, apart)


def played_lengths(folder: RunFolder) -> list[int]:
    """Return the number of turns of each recorded game."""
    return [len(game["turns"]) for game in finished(folder).values()]


def trained_lengths(folder: RunFolder) -> list[int]:
    """Return the number of turns of each game that was trained on."""
    games = finished(folder)
    return [len(games[number]["turns"]) for number in {game for game, _ in trained_on(folder)}]


def distance(one: list[int], other: list[int]) -> float:
    """Return the Kolmogorov-Smirnov statistic of two samples."""
    return max(
        abs(sum(n <= at for n in one) / len(one) - sum(n <= at for n in other) / len(other))
        for at in {*one, *other}
    )


def test_bias_towards_short_games_is_detected() -> None:
    """The statistic exceeds its bound when one long game in three is missing."""
    chance = random.Random(0)
    lengths = [chance.choice([2, 3, 4, 5, 6, 7, 8, 9]) for _ in range(800)]
    kept = [n for n in lengths if n < 6 or chance.random() > 1 / 3]
    bound = LARGEST * (1 / len(lengths) + 1 / len(kept)) ** 0.5
    assert distance(lengths, kept) > bound > distance(lengths[::2], lengths[1::2]) / 2
