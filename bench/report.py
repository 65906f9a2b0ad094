"""Time to make a report of many recorded games of a language model, and to open it.

    .venv/bin/python -m bench.report [--games 10000] [--prompt 400] [--answer 60]

Writes a run's folder of TicTacToe games between random players. Every turn has a prompt and an
answer of the given numbers of tokens of the embedded model; all prompts share seven eighths of
their length, and answers are random words. Makes the report in a separate process, and opens it in
chromium, if installed.
"""

import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import parser
from unstable.config import GameConfig, dump, parse
from unstable.games.game import Game

VERSIONS = 50
DISTINCT = 100
WORDS = range(1000, 3000)
REPORT = """
import resource, sys, time
from pathlib import Path
began = time.monotonic()
from unstable.commands.report import report
report([Path(sys.argv[1])])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(f"{time.monotonic() - began:.1f} s with all imports, {peak:.2f} GB at most")
"""


def make_game(number: int, prompt: int, answer: int) -> dict[str, Any]:
    """Return a record as the tracker writes it."""
    chance, game = random.Random(number), Game(GameConfig(), number)
    turns: list[dict[str, Any]] = []
    shared = random.Random(0).choices(range(1000, 49000), k=prompt * 7 // 8)
    while not game.done:
        seat, observation = game.seat, game.observe()
        action = chance.choice(game.legal_moves())
        game.step(action)
        segment = {
            **{"kind": "sampled", "token_ids": chance.choices(WORDS, k=answer)},
            "logprobs": [-chance.expovariate(1.0) for _ in range(answer)],
            **{"finish_reason": "stop", "adapter": "main@0"},
        }
        prompt_ids = shared + chance.choices(WORDS, k=prompt - len(shared))
        turns.append(
            {
                **{"seat": seat, "index": len(turns), "invalid": False, "seconds": 1.0},
                "answer": {
                    **{"player": "main@0", "action": action, "text": action * 20},
                    "observation": f"{observation.rules}\n{observation.board}",
                    "sampled": {
                        **{"version": 0, "temperature": 1.0, "prompt_ids": prompt_ids},
                        "segments": [segment],
                    },
                },
                "rewards": {"outcome": {"raw": 1.0, "weighted": 1.0}},
            }
        )
    seat_of_policy = {"player": "main@0", "temperature": 1.0, "group_id": 1, "group_size": 1}
    return {
        **{"format": 2, "version": 0, "actor": 0},
        "spec": {
            **{"game": number, "purpose": "train", "env": "TicTacToe-v0", "seed": number},
            "seats": [seat_of_policy] * 2,
        },
        **{"payoffs": game.payoffs, "outcomes": game.outcomes, "truncated": False},
        **{"reason": game.reason, "seconds": 5.0, "turns": turns},
    }


def make_run(root: Path, games: int, prompt: int, answer: int) -> None:
    """Write a folder like `unstable train`, with the parts that a report reads."""
    (root / "games").mkdir(parents=True)
    (root / "config.yaml").write_text(dump(parse({})), encoding="utf-8")
    rows = [{"version": version, "time/total": 60.0} for version in range(VERSIONS + 1)]
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    distinct = [make_game(number, prompt, answer) for number in range(DISTINCT)]
    for version in range(VERSIONS):
        with (root / f"games/train-{version:06d}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(games // VERSIONS):
                game = distinct[number % DISTINCT]
                spec = {**game["spec"], "game": version * games + number}
                record = {**game, "spec": spec}
                file.write(json.dumps(record, separators=(",", ":")) + "\n")


def opening_seconds(page_file: Path) -> float | None:
    """Return the seconds until the page has drawn charts and first game; None without chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        began = time.monotonic()
        page.goto(page_file.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached")
        page.wait_for_selector("#game[data-turn]", state="attached")
        return time.monotonic() - began


def main(argv: Sequence[str] | None = None) -> None:
    given = parser(__doc__, games=10_000, prompt=400, answer=60).parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "run"
        make_run(root, given.games, given.prompt, given.answer)
        size = sum(path.stat().st_size for path in (root / "games").iterdir())
        print(f"{given.games:,} games, {size / 1e6:,.0f} MB")
        subprocess.run([sys.executable, "-c", REPORT, str(root)], check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{used.ru_utime + used.ru_stime:.1f} s of CPU time")
        seconds = opening_seconds(root / "report.html")
        print("no chromium" if seconds is None else f"opens in {seconds:.1f} s")


if __name__ == "__main__":
    main()
