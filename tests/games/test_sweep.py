"""Test that every TextArena family plays to an end or the limit, or is rejected in one line."""

import re
import sys

import pytest

from tests.helpers.sweep import PAGE, families, sweep
from tests.helpers.tables import table
from unstable.games.catalog.vetted import DEFECTS

REMEDIES = ("choose another game", "set OPENROUTER_API_KEY", "pip install", "use Python 3.12")


CORE = {
    "Nim-v0": "two seats, every seat sees all",
    "KuhnPoker-v0": "chance, hidden",
    "Sudoku-v0": "one seat",
    "ThreePlayerIPD-v0": "three seats, simultaneous",
    "Codenames-v0": "teams",
    "SecretMafia-v0": "six seats, roles",
    "SimpleNegotiation-v0": "free text",
    "SpellingBee-v0": "needs a dictionary",
    "Breakthrough-v0": "a known defect",
    "Chess-v0": "rejected: syntax error in its file",
    "Debate-v0": "rejected: needs a judge",
    "ScorableGames-v0": "rejected: a file is missing",
    "UsedCar-v0-balanced": "rejected: a module is missing",
    "CharacterConclave-v0": "rejected: its actions raise",
}
"""One family per feature and per reason for rejection."""


@pytest.mark.parametrize("env", table("textarena", families().values(), CORE))
def test_family_plays_or_is_rejected_as_documented(env: str) -> None:
    (found,) = sweep([env])
    assert found.refusal or found.ended + found.forfeited + found.cut_off == 3
    assert "\n" not in found.refusal and len(found.refusal) < 400
    assert not found.refusal or any(remedy in found.refusal for remedy in REMEDIES), found.refusal
    if sys.version_info[:2] == (3, 11):  # other versions accept other files
        played, refused = listed_by_outcome()
        assert env in (refused if found.refusal else played)


def test_docs_list_every_family() -> None:
    played, refused = listed_by_outcome()
    assert len(played) > 75 and not played & refused
    assert played | refused == {*families().values()}


def test_docs_list_logged_defects() -> None:
    rows = re.findall(r"^\| (.*-v0.*) \| (.*) \|$", part("Known defects"), re.MULTILINE)
    shown = {env: defect for envs, defect in rows for env in envs.split(", ")}
    names, (played, _) = families(), listed_by_outcome()
    assert shown == {names[each]: DEFECTS[each] for each in DEFECTS if names.get(each) in played}
    assert len(shown) > 20


def part(heading: str) -> str:
    """A section of the page."""
    return PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]


def listed_by_outcome() -> tuple[set[str], set[str]]:
    """The ids that the page lists as playable and as rejected."""
    return listed("Playable games"), listed("Rejected games")


def listed(heading: str) -> set[str]:
    """The ids in a section."""
    return set(re.findall(r"\b\w+-v0[\w-]*", part(heading)))
