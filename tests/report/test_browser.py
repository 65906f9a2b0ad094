"""A report in a real browser: it opens without a network, filters, steps, runs its own scripts."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.builders import answering, sampled
from tests.helpers.loop import make_context, train_to_end
from tests.helpers.records import game_record
from tests.helpers.tracking import make_game, make_trajectories
from unstable.commands.report import make_report
from unstable.models.hub import cache_folder
from unstable.records.files import write_lines
from unstable.report.page import plot_library, write_page
from unstable.studies.sweep.report import Measure, Outcome, results, sweep_page

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine; bash scripts/browser.sh installs it"
)
HOSTILE = (
    "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    "<b>bold</b>&amp; \x1b[31m\u202e {{DATA}}"
)
SEEN = HOSTILE.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")


def hostile_games() -> list[dict[str, Any]]:
    """Games of version 2 whose every text attacks the page."""
    games = [make_game(1000 + number, forfeit=0 if number % 2 else None) for number in range(4)]
    for game in games:
        game.reason = HOSTILE
        for place, turn in enumerate(game.turns):
            ids = [4 + ord(character) for character in HOSTILE if character.isascii()]
            logprobs = [-0.05 * place for place in range(len(ids))]
            tokens = sampled(
                prompt_ids=[2, *ids, 3],
                token_ids=ids,
                logprobs=logprobs,
                version=1,
                top_logprobs=[[(ids[0], -0.1), (ids[1], -2.5), (4, -4.0)] for _ in ids],
            )
            game.turns[place] = answering(
                turn,
                text=HOSTILE,
                action=HOSTILE,
                observation=HOSTILE,
                sampled=None if turn.answer.sampled is None else tokens,
            )
    return [game_record(game, make_trajectories(game), 2, 0) for game in games]


@pytest.fixture(scope="module")
def page_file(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a real run, with some hostile games among its own."""
    folder = train_to_end(make_context(tiny_folder, tmp_path_factory.mktemp("run") / "run"))
    own = [json.loads(line) for line in folder.games("train", 2).read_text().splitlines()]
    write_lines(folder.games("train", 2), [*hostile_games(), *own])
    make_report([folder.root], folder.report)
    return folder.report


@pytest.fixture(scope="module")
def browser(page_file: Path) -> Iterator[Any]:
    """After the run: the driver keeps an event loop running."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page with all that it said and asked for."""

    def __init__(
        self, browser: Any, path: Path, width: int, scheme: str = "light", *, games: bool = True
    ) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)
        self.page.wait_for_selector("html[data-drawn]", state="attached")
        if games:
            self.page.wait_for_selector("#game[data-turn]", state="attached")

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


@pytest.fixture(
    params=[(1400, "light"), pytest.param((390, "dark"), marks=pytest.mark.slow)],
    ids=["1400", "390"],
)
def opened(request: pytest.FixtureRequest, browser: Any, page_file: Path) -> Iterator[Opened]:
    found = Opened(browser, page_file, *request.param)
    yield found
    assert found.said == [] and found.asked == [found.url]
    found.page.close()


def test_page_opens_without_console_output_or_requests(opened: Opened) -> None:
    assert opened.page.locator("h1").count() == 1
    drawn = opened.page.evaluate("document.documentElement.dataset.drawn")
    assert opened.page.locator("figure svg").count() == int(drawn) > 5
    sizes = opened.page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert sizes[0] == sizes[1], "the page scrolls sideways"


def test_filters_select_games(opened: Opened) -> None:
    everything = opened.page.locator(".game-row").count()
    assert opened.text("#game-count") == f"{everything} of {everything} games"
    opened.page.select_option("#filter-forfeit", "forfeited")
    forfeited = opened.page.locator(".game-row").count()
    assert 2 <= forfeited < everything
    assert opened.page.locator(".game-row", has_text="forfeit").count() == forfeited
    opened.page.select_option("#filter-forfeit", "")
    opened.page.fill("#filter-from", "2")
    assert 0 < opened.page.locator(".game-row").count() < everything
    opened.page.fill("#filter-from", "99")
    assert opened.page.locator(".game-row").count() == 0
    assert "No game matches" in opened.text("#game")


def test_rows_keep_their_height_when_scrolled_into_view(opened: Opened) -> None:
    """Rows keep their height once visible; otherwise, scrolling would shift the list."""
    heights = "all => all.map((row) => row.getBoundingClientRect().height)"
    before = opened.page.locator(".game-row").evaluate_all(heights)
    opened.page.locator(".game-row").last.scroll_into_view_if_needed()
    opened.page.locator(".game-row").last.click()
    assert opened.page.locator(".game-row").evaluate_all(heights) == before
    assert len(set(before)) == 1


def test_keyboard_steps_through_games_and_turns(opened: Opened) -> None:
    opened.page.focus("#game-list")
    opened.press("ArrowDown", "ArrowDown")
    selected = opened.page.locator("[aria-selected=true]")
    assert selected.get_attribute("id") == "game-2"
    assert opened.page.get_attribute("#game-list", "aria-activedescendant") == "game-2"
    opened.press("End")
    assert int(str(selected.get_attribute("id")).removeprefix("game-")) > 2
    opened.press("Home")
    opened.page.wait_for_selector("#game[data-turn='0']")
    opened.press("ArrowRight")
    assert opened.page.get_attribute("#game", "data-turn") == "1"
    opened.press("ArrowLeft", "ArrowLeft")
    assert opened.page.get_attribute("#game", "data-turn") == "0"
    opened.page.get_by_role("button", name="end").click()
    assert "End of the game" in opened.text("#game")


def test_hostile_text_is_shown_as_text(opened: Opened) -> None:
    opened.page.fill("#filter-from", "2")
    opened.page.locator(".game-row", has_text="train 1000 ").click()
    opened.page.wait_for_selector("#game[data-game='1000']")
    assert opened.page.locator("#game details pre").first.text_content() == SEEN
    assert "<b>bold</b>" in str(opened.page.locator(".tokens").text_content())
    assert opened.page.locator("#game b, #game img, #game script").count() == 0
    opened.page.get_by_role("button", name="end").click()
    assert SEEN in str(opened.page.locator("#game").text_content())
    assert opened.page.evaluate("window.broken") is None


def test_tokens_are_shaded_by_probability(opened: Opened) -> None:
    opened.page.locator(".game-row", has_text="train 1000 ").click()
    opened.page.wait_for_selector("#game[data-game='1000']")
    tokens = opened.page.locator(".tokens .token")
    shades = tokens.evaluate_all("all => all.map((t) => getComputedStyle(t).backgroundColor)")
    assert len(set(shades[:10])) > 5
    assert tokens.nth(4).get_attribute("title") == "82 % · log-probability −0.2"
    assert "<|system|>" not in opened.text("#game")
    opened.page.get_by_text("Exact prompt").click()
    assert "<|user|>" in opened.text("#game")


def test_token_shows_its_alternatives(opened: Opened) -> None:
    opened.page.locator(".game-row", has_text="train 1000 ").click()
    opened.page.wait_for_selector("#game[data-game='1000']")
    assert opened.text(".likeliest") == "Select a token to see its alternatives."
    opened.page.locator(".tokens .token").nth(1).click()
    assert opened.text(".likeliest") == '"/" 95 %; alternatives · "<" 90 % · "\\\\u0000" 1.8 %'
    opened.page.locator(".tokens .token").nth(1).focus()
    opened.press("Tab")
    assert opened.text(".likeliest").startswith('"s" 90 %; alternatives · "<" 90 % · "/" 8.2 % · ')


def test_injected_script_does_not_run(opened: Opened) -> None:
    opened.page.evaluate(
        "() => { const script = document.createElement('script');"
        " script.textContent = 'window.broken = 3'; document.body.append(script); }"
    )
    assert opened.page.evaluate("window.broken") is None
    assert "Content Security Policy" in opened.said.pop()


def test_game_of_a_person_opens_in_viewer(browser: Any, tmp_path: Path) -> None:
    words = ["play", "--opponent", "expert", "--seed", "1", "--run_dir", "played"]
    command = [sys.executable, "-c", "from unstable.cli import main; main()"]
    subprocess.run(
        [*command, *words], cwd=tmp_path, input="4\n", text=True, capture_output=True, check=True
    )
    subprocess.run([*command, "report", "played"], cwd=tmp_path, capture_output=True, check=True)
    found = Opened(browser, tmp_path / "played/report.html", 1400)
    assert "Recorded games." in found.text("h1")
    assert found.text("#game-count") == "1 of 1 games"
    shown = found.text("#game")
    assert "person" in shown and "expert" in shown and "evaluation game 0" in shown
    assert "unstable play --opponent expert" in found.text("main")
    assert found.said == [] and found.asked == [found.url]
    found.page.close()


def test_only_rejected_action_is_called_not_legal(browser: Any, page_file: Path) -> None:
    found = Opened(browser, page_file, 1400)
    script = """turn => {
      const position = { action_values: { "[4]": 1, "[0]": -1 } };
      return [mistaken(turn, position), solution(turn, position).querySelector("p").textContent];
    }"""
    for turn, marked, said in (
        ({"action": "[4]", "invalid": False}, False, "it was played."),
        ({"action": "[0]", "invalid": False}, True, "the played move has value −1."),
        ({"action": "I play [4]", "invalid": False}, False, "not among the listed actions."),
        ({"action": "[9]", "invalid": True}, True, "not legal."),
    ):
        shown, verdict = found.page.evaluate(script, turn)
        assert shown == marked and verdict.endswith(said), turn
    found.page.close()


def test_equilibrium_policy_is_shown(browser: Any, page_file: Path) -> None:
    found = Opened(browser, page_file, 1400)
    script = """action => solution({ action }, { mix: { "[bet]": 0.3 } }).textContent"""
    shown = found.page.evaluate(script, "[check]")
    assert shown.startswith("One equilibrium's policy")
    assert "Probability of each action; the played action is not among the listed" in shown
    found.page.close()


def test_greedy_games_are_labeled_and_filtered(browser: Any, page_file: Path) -> None:
    found = Opened(browser, page_file, 1400)
    kinds = found.page.evaluate("[...new Set(report.games.rows.flatMap(sampling))].sort()")
    assert found.page.locator("#filter-sampling").count() == (len(kinds) > 1)
    found.page.evaluate(
        """() => {
      report.games.rows.forEach((row, at) => { row.temperature = at ? 0.7 : 0; });
      document.querySelector(".filters").replaceWith(filterBar());
    }"""
    )
    found.page.select_option("#filter-sampling", "greedy")
    assert found.page.locator(".game-row").count() == 1
    found.page.wait_for_function(
        "document.querySelector('#game h3').textContent.endsWith('greedy')"
    )
    found.page.select_option("#filter-sampling", "sampled")
    found.page.wait_for_function(
        "document.querySelector('#game h3').textContent.endsWith('temperature 0.7')"
    )
    found.page.close()


@pytest.mark.parametrize("width", [1400, 390])
def test_runs_of_one_config_have_distinct_labels(
    browser: Any, page_file: Path, tmp_path: Path, width: int
) -> None:
    """Labels keep the last word of each folder, which differs, and the page fits a phone."""
    name = "tiny-TicTacToe-v0-self-20261123-"
    runs = [tmp_path / f"{name}{time}" for time in ("163000", "171500")]
    for run in runs:
        shutil.copytree(page_file.parent, run, ignore=shutil.ignore_patterns("checkpoints"))
    make_report(runs, tmp_path / "report.html")
    found = Opened(browser, tmp_path / "report.html", width)
    legend = (
        found.page.locator(".plot").first.locator(".role-legend-label text").all_text_contents()
    )
    assert legend == ["163000", "171500"]
    assert found.text("h1") == "No significant difference between 163000 and 171500."
    assert "163000 (tiny-TicTacToe-v0-self-20261123-163000):" in found.text("header")
    assert "4, paired" in found.text("#learning .card >> nth=0")
    options = found.page.locator("#filter-run option").all_text_contents()
    assert options[-2:] == ["163000", "171500"]
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    assert found.said == []
    found.page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_sweep_page_shows_curves(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    measure = Measure("collect/reward", "max")
    runs = [
        Outcome(
            *(f"s{n}-seed{seed}", f"s{n}", seed, "failed" if seed == 2 else "done"),
            [{"version": at, "collect/reward": at * n / 9 + seed} for at in range(5)],
            *("unstable train --seed 1", "out/x", HOSTILE if seed == 2 else ""),
        )
        for n in range(12)
        for seed in (1, 2)
    ]
    found = results(runs, measure)
    fields = {each.setting: {"model.name": HOSTILE} for each in found}
    page = sweep_page("mine", found, measure, fields, [["2", "s0", "0.1", "stopped"]])
    write_page(tmp_path / "page.html", page, [], plot_library(cache_folder()))
    opened = Opened(browser, tmp_path / "page.html", width, scheme, games=False)
    assert opened.text("h1").startswith("s11 is best: ")
    assert opened.page.locator("figure svg").count() == 1
    assert opened.page.locator("#results tbody tr").count() == 13
    assert opened.text("#settings pre").count("unstable train") == 24
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate("window.broken") is None
    assert opened.said == [] and opened.asked == [opened.url]
    opened.page.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_tournament_page_opens_with_games(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    words = ["tournament", "random", "expert", "--game", "Nim-v0", "--deals", "4"]
    command = [sys.executable, "-c", "from unstable.cli import main; main()", *words]
    subprocess.run(
        [*command, "--run_dir", "met"], cwd=tmp_path, capture_output=True, check=True, text=True
    )
    found = Opened(browser, tmp_path / "met/report.html", width, scheme)
    assert "expert" in found.text("h1")
    assert found.text("#game-count") == "8 of 8 games"
    assert found.page.locator(".game-row", has_text="random and expert").count() == 4
    assert found.page.locator("figure svg").count() == 2
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    assert "unstable tournament --resume" in found.text("#settings")
    assert found.said == [] and found.asked == [found.url]
    found.page.close()
