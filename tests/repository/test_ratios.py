"""Ratios on documentation pages follow from figures on the same page.

A page declares them in a comment, `<!-- ratios: 185 / 83 = 2.22; 3.10 / 2.73 = +14 % -->`, and
they are recomputed within rounding. `24.5 measured` is a ratio whose figures are not on the page.
"""

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
COMMENT = re.compile(r"<!-- ratios: (.*?) -->", re.DOTALL)
TIMES = re.compile(
    r"(?<![\w.,])([\d,]+(?:\.\d+)?) x(?= |\n|$|\.|;|,)(?! (?:\d|hidden|w\b|layer|\())"
)
GROWTH = re.compile(r"\| ([+−-]\d+ %) \|")
SCORE = re.compile(r"(\d+), (\d+), (\d+): (0\.\d+|1\.0+) \(")


class Ratio(NamedTuple):
    """Two figures and their written ratio, or the ratio alone. Ratio("185", "83", "2.22")"""

    above: str
    below: str
    written: str


def ratios(text: str) -> list[Ratio]:
    found = []
    for comment in COMMENT.findall(text):
        for each in comment.split(";"):
            if each.strip().endswith(" measured"):
                found.append(Ratio("", "", each.strip().removesuffix(" measured")))
                continue
            figures, _, written = each.partition("=")
            above, _, below = figures.partition("/")
            found.append(Ratio(above.strip(), below.strip(), written.strip()))
    return found


def ends(figure: str) -> tuple[float, float]:
    """Return the least and the greatest value that round to the written figure."""
    plain = figure.replace(",", "").replace("−", "-").removesuffix(" %")
    half = 0.5 * 10.0 ** -len(plain.partition(".")[2])
    return float(plain) - half, float(plain) + half


def follows(ratio: Ratio) -> bool:
    """Return whether values that round to the written figures can have the written ratio."""
    (above, most), (below, largest) = ends(ratio.above), ends(ratio.below)
    low, high = above / largest, most / below
    if ratio.written.endswith("%"):
        base = ratio.written[0] in "+−-"
        low, high = 100 * (low - base), 100 * (high - base)
    least, greatest = ends(ratio.written)
    return low <= greatest and least <= high


def test_ratios_follow_from_figures_on_the_page() -> None:
    failed: list[tuple[str, Ratio, str]] = []
    for name, text in PAGES.items():
        shown = COMMENT.sub("", text)
        for ratio in ratios(text):
            for figure in filter(None, ratio):
                if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d%])", shown):
                    failed.append((name, ratio, f"{figure} is not on the page"))
            if ratio.above and not follows(ratio):
                failed.append((name, ratio, "does not follow"))
    assert failed == []


def test_each_ratio_has_a_source() -> None:
    unknown = {}
    for name in ("benchmarks.md", "memory.md", "results.md", "small_worlds.md"):
        text = PAGES[name]
        shown, known = COMMENT.sub("", text), {ratio.written for ratio in ratios(text)}
        formulas = name == "memory.md"  # has products such as 12 x hidden
        written = set(GROWTH.findall(shown)) | (set() if formulas else set(TIMES.findall(shown)))
        unknown[name] = written - known
    assert not any(unknown.values()), unknown


def test_scores_follow_from_their_game_counts() -> None:
    failed = []
    for name, text in PAGES.items():
        for won, drawn, lost, score in SCORE.findall(text):
            games = int(won) + int(drawn) + int(lost)
            low, high = ends(score)
            if not low - 1e-9 <= (int(won) + int(drawn) / 2) / games <= high + 1e-9:
                failed.append((name, won, drawn, lost, score))
    assert failed == []


def test_wrong_ratio_is_detected() -> None:
    assert follows(Ratio("185", "83", "2.22")) and not follows(Ratio("185", "83", "2.32"))
    assert follows(Ratio("3.10", "2.73", "+14 %")) and not follows(Ratio("3.10", "2.73", "+16 %"))
    assert follows(Ratio("15", "590", "2.5 %")) and not follows(Ratio("15", "590", "6 %"))
    assert follows(Ratio("0.14", "0.27", "0.50"))  # both figures rounded
    assert not follows(Ratio("5,903", "9,566", "0.64"))
