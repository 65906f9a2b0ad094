"""Every family of TextArena's registry plays to an end or the cap, or is refused in one line."""

import re
import sys

import pytest

from tests.sweep import PAGE, Found, sweep

REMEDIES = ("choose another game", "set OPENROUTER_API_KEY", "pip install", "use Python 3.12")


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return list(sweep())


@pytest.mark.slow
def test_every_family_plays_or_is_refused_with_a_remedy(found: list[Found]) -> None:
    assert len(found) > 90
    for each in found:
        assert each.refusal or each.ended + each.forfeited + each.cut_off == 3
        assert "\n" not in each.refusal and len(each.refusal) < 400
        assert not each.refusal or any(remedy in each.refusal for remedy in REMEDIES), each.refusal
    assert sum(not each.refusal for each in found) > 75


@pytest.mark.slow
def test_the_page_says_the_same(found: list[Found]) -> None:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the page is of Python 3.11; other versions parse other files")
    played, _, refused = PAGE.read_text(encoding="utf-8").partition("## Refused")
    assert listed(played) == {each.env for each in found if not each.refusal}
    assert listed(refused) == {each.env for each in found if each.refusal}


def listed(text: str) -> set[str]:
    return set(re.findall(r"^\| (\S+-v0\S*) \|", text, re.MULTILINE))
