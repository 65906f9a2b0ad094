"""Takes the pictures of README and docs.

    .venv/bin/python -m scripts.pictures RUN_DIR [--sweep DIR] [--tournament DIR] [--out docs]
    .venv/bin/python -m scripts.pictures RUN_DIR --dashboard    # while the run is running
    .venv/bin/python -m scripts.pictures --record "train --config tiny_nim"

RUN_DIR is an evaluated run: its report and a game in the viewer. `--record` writes a recording of
the command in 20 seconds. Pages require playwright and chromium (`scripts/browser.sh`).
"""

import argparse
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from scripts.recording import animated, recorded
from unstable.commands.report import make_report
from unstable.commands.watch import Watched
from unstable.records.folder import RunFolder
from unstable.tracking.dashboard import screenshot

WIDTH, HEIGHT = 1240, 900


def take(page: Any, out: Path) -> None:
    """Take the top of a report, then an evaluation game at its last suboptimal move."""
    page.wait_for_selector("html[data-drawn]", state="attached")
    page.wait_for_selector("#game[data-turn]", state="attached")
    page.screenshot(path=out / "report.png")
    if page.locator("#filter-purpose").count():
        page.select_option("#filter-purpose", "eval")
    if page.locator("#filter-result").count():
        page.select_option("#filter-result", "loss")
    page.wait_for_timeout(500)
    mistakes = page.locator(".chip.mistake.seat-1, .chip.mistake")
    if mistakes.count():
        mistakes.last.click()
    page.locator(".viewer").screenshot(path=out / "viewer.png")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run_dir", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--dashboard", action="store_true", help="only the current dashboard")
    parser.add_argument("--record", metavar="ARGUMENTS", help="only a recording of this command")
    parser.add_argument("--sweep", type=Path, metavar="DIR")
    parser.add_argument("--tournament", type=Path, metavar="DIR")
    given = parser.parse_args(argv)
    if given.record is not None:
        frames = recorded(shlex.split(given.record), every_s=0.5, most=40)
        (given.out / "recording.svg").write_text(animated(frames, 20.0), encoding="utf-8")
        return
    if given.dashboard:
        if given.run_dir is None:
            parser.error("--dashboard: RUN_DIR is missing")
        svg = screenshot(Watched(RunFolder(given.run_dir)).view)
        (given.out / "dashboard.svg").write_text(svg, encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        if given.run_dir is not None:
            path = Path(scratch) / "report.html"
            make_report([given.run_dir], path)
            page.goto(path.as_uri())
            take(page, given.out)
        for name in ("sweep", "tournament"):
            if (folder := getattr(given, name)) is not None:
                page.goto((folder / "report.html").resolve().as_uri())
                page.wait_for_selector("html[data-drawn]", state="attached")
                page.screenshot(path=given.out / f"{name}.png")


if __name__ == "__main__":
    main()
