"""Players that are rated in a process of their own are rated as they are in this one."""

import random
import time
from collections.abc import Iterator

import pytest

from tests.helpers.builders import game
from unstable.collectors.isolation import start_process
from unstable.league import skills
from unstable.league.ratings import Registry
from unstable.league.skills import SkillsApart
from unstable.types import GameResult, PlayerId

RANDOM, EXPERT = PlayerId("random"), PlayerId("expert")


@pytest.fixture
def apart() -> Iterator[SkillsApart]:
    made = SkillsApart(*start_process(skills.__name__))
    yield made
    made.close()
    assert made._process is not None and made._process.returncode is not None


def registry(own: SkillsApart | None = None) -> Registry:
    return Registry([RANDOM, EXPERT], anchor=RANDOM, pool_size=2, skills=own)


def games(version: int, count: int, chance: random.Random) -> list[GameResult]:
    """Of two and of three, draws and forfeits among them."""
    made = []
    for number in range(count):
        others = chance.sample(["random", "expert", f"main@{max(0, version - 1)}"], 2)
        players = [f"main@{version}", *others[: 1 + number % 2]]
        outcomes = [chance.choice([-1.0, 0.0, 0.0, 1.0]) for _ in players]
        forfeit = 0 if number % 7 == 0 else None
        made.append(game(players, outcomes, game_id=number, turns=6, forfeit=forfeit))
    return made


def play(made: Registry, versions: range, seed: int = 1, together: int = 9) -> None:
    for version in versions:
        made.add(PlayerId.policy(version))
        made.announce(PlayerId.policy(version))
        played = games(version, 40, random.Random(f"{seed} {version}"))
        for first in range(0, len(played), together):
            made.record(played[first : first + together])


def test_ratings_are_the_same_to_the_bit(apart: SkillsApart) -> None:
    here, there = registry(), registry(apart)
    for made in (here, there):
        play(made, range(3))
    assert there.ratings() == here.ratings()
    assert there.state() == here.state()
    assert [*there.state().ratings] == [*here.state().ratings]
    (pinned,) = [row for row in there.ratings() if row.player == RANDOM]
    assert pinned.mu == 25.0
    again = registry()
    again.restore(there.state())
    there.restore(there.state())
    for made in (again, there):
        play(made, range(3, 5), seed=2)
    assert there.state() == again.state()


def test_games_that_come_one_by_one_are_rated_like_those_that_come_together() -> None:
    one, many = registry(), registry()
    play(one, range(3), together=1)
    play(many, range(3), together=40)
    assert one.state() == many.state()


@pytest.mark.parametrize("asks_between", [False, True])
def test_where_the_process_is_killed_nothing_is_lost(
    apart: SkillsApart, asks_between: bool, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = registry(), registry(apart)
    play(here, range(4))
    play(there, range(2))
    if asks_between:
        there.ratings()
    assert apart._process is not None
    apart._process.kill()
    apart._process.wait()
    play(there, range(2, 4))
    for ours, theirs in zip(there.ratings(), here.ratings(), strict=True):
        assert (ours.player, ours.games) == (theirs.player, theirs.games)
        assert (ours.mu, ours.sigma) == pytest.approx((theirs.mu, theirs.sigma), abs=1e-9)
    assert caplog.text.count("the process that rates players has ended") == 1
    (pinned,) = [row for row in there.ratings() if row.player == RANDOM]
    assert pinned.mu == 25.0


def test_the_process_ends_with_who_asks_it() -> None:
    connection, process = start_process(skills.__name__)
    SkillsApart(connection, process).put("one", 25.0, 8.0)
    connection.close()
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.returncode == 0
