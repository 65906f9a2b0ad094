"""Every family of TextArena's registry plays to an end or the cap, or is refused in one line."""

import re
import sys

import pytest

from tests.helpers.sweep import PAGE, Found, families, sweep
from unstable.games.catalog.vetted import DEFECTS

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


def test_the_page_gives_the_defects_that_a_run_warns_of() -> None:
    played = PAGE.read_text(encoding="utf-8").partition("## Refused")[0]
    cells = [line.strip("|").split("|") for line in played.splitlines() if "-v0" in line]
    shown = {row[0].strip(): row[-1].strip() for row in cells}
    by_id = {env: DEFECTS.get(family, "") for family, env in families().items()}
    assert len(shown) > 75 and sum(map(bool, shown.values())) > 20
    assert shown == {env: by_id[env] for env in shown}


def listed(text: str) -> set[str]:
    return set(re.findall(r"^\| (\S+-v0\S*) \|", text, re.MULTILINE))
