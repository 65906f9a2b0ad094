"""Makes README's pictures: the dashboard, the top of a report, and a game in the viewer.

    .venv/bin/python scripts/pictures.py RUN_DIR [--out docs]
    .venv/bin/python scripts/pictures.py RUN_DIR --dashboard    # during the run

RUN_DIR is a run with evaluations. The report's pictures require playwright and chromium
(`scripts/browser.sh`).
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from unstable.commands.report import make_report
from unstable.commands.watch import Watched
from unstable.records.folder import RunFolder
from unstable.tracking.dashboard import screenshot

WIDTH, HEIGHT = 1240, 900


def take(page: Any, out: Path) -> None:
    """Save the top of the page, and an evaluation game at a turn that was not the best move."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--dashboard", action="store_true", help="only the current dashboard")
    given = parser.parse_args()
    if given.dashboard:
        svg = screenshot(Watched(RunFolder(given.run_dir)).view)
        (given.out / "dashboard.svg").write_text(svg, encoding="utf-8")
        return
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        path = Path(scratch) / "report.html"
        make_report([given.run_dir], path)
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(path.as_uri())
        take(page, given.out)


if __name__ == "__main__":
    main()
