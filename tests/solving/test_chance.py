"""A game whose chance is not counted out is refused, however it draws; no wrong figure is given."""

import random
import threading

import numpy as np
import pytest

from tests.helpers.liars import ROLLS, Liars
from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from tests.helpers.trees import uniform
from unstable.config import ConfigError, GameConfig
from unstable.games.info import GameInfo, SmallTree
from unstable.games.other_draws import refused
from unstable.solving.best_response import assess
from unstable.solving.tree import grow


def liars(roll: str) -> GameConfig:
    return GameConfig(env=f"{Liars.__module__}:Liars", args={"roll": roll})


@pytest.mark.parametrize("roll", ["randint", "sample"])
def test_liars_dice_exploitability_matches_openspiel(roll: str) -> None:
    tree = grow(liars(roll))
    # open_spiel 2.0.2: liars_dice(numdice=1,dice_sides=3)
    found = assess(tree, uniform(tree), forfeits=True)
    assert found.exploitability == pytest.approx(0.5556, abs=1e-4)

    assert tree.nodes == 1144


@every_row(
    "roll, named",
    ("choices", r"draws with random\.choices"),
    ("choices by name", r"draws with random\.choices"),
    ("float", r"draws with random\.random"),
    ("numpy", r"draws with numpy\.random\.randint"),
    ("numpy's own", r"module random \(another generator"),
    ("own", r"draws with randint of a private random\.Random"),
    ("system", r"draws with randint of a private random\.SystemRandom"),
)
def test_draws_that_cannot_be_enumerated_are_rejected_by_name(roll: str, named: str) -> None:
    before = random.getstate(), {name: vars(random.Random).get(name) for name in dir(random.Random)}
    numpys = dict(vars(np.random))
    with pytest.raises(ConfigError, match=named) as error:
        grow(liars(roll))
    assert "draw with randrange, randint, choice, shuffle or sample" in str(error.value)
    after = random.getstate(), {name: vars(random.Random).get(name) for name in dir(random.Random)}
    assert before == after and numpys == dict(vars(np.random)), "random state is unchanged"


def test_all_ways_of_rolling_are_tested() -> None:
    assert len(ROLLS) == 2 + 7


def test_other_threads_can_draw_during_checks() -> None:
    drawn: list[float] = []
    with refused():
        thread = threading.Thread(target=lambda: drawn.append(random.random()))
        thread.start()
        thread.join()
    assert len(drawn) == 1
    assert 0 <= random.random() < 1 and 0 <= random.Random(0).random() < 1


class Hands(Liars):
    """Says the faces that a seat's own bids have used up, or not; each is used once."""

    def __init__(self, told: bool) -> None:
        super().__init__()
        self.told = told

    def legal_moves(self) -> list[str]:
        own = self.made[self.mover :: 2]
        return [face for face in ("[1]", "[2]", "[3]") if face not in own]

    def observe(self):
        shown = super().observe()
        own = self.made[self.mover :: 2]
        shown.events[:] = own if self.told else [f"{len(own)} played"]
        return shown

    def step(self, action: str):
        self.made.append(action)
        return super().step("")._replace(over=len(self.made) == 4, refused=False)

    def payoffs(self) -> list[float]:
        return [1.0, -1.0]


def test_equal_observations_with_different_moves_are_rejected() -> None:
    def hands(told: bool) -> GameConfig:
        return GameConfig(env=f"{__name__}:Hands", args={"told": told})

    assert len(grow(hands(True)).decisions) == 2 * 3 * (1 + 3)
    text = line_of(grow, hands(False))
    assert "seat 1 has the same observation, '1 played Your die shows 1.'" in text
    assert "[2] [3] and [1] [3]" in text and "its own hand or its own moves" in text


class Blind(Liars):
    """Two moves of seat 0, of which it is not shown the first, and seat 1's guess of that."""

    @property
    def mover(self) -> int:
        return int(len(self.made) == 1)

    def legal_moves(self) -> list[str]:
        return ["[1]", "[2]"]

    def observe(self):
        shown = super().observe()
        shown.events[:] = [f"{len(self.made)} made"]
        return shown

    def step(self, action: str):
        self.made.append(action)
        return super().step("")._replace(over=len(self.made) == 3, refused=False)

    def payoffs(self) -> list[float]:
        won = 1.0 if self.made[0] == self.made[2] else -1.0
        return [won, -won]


def test_best_response_remembers_own_moves() -> None:
    """The policy sees two positions as one; who knows its own move wins always."""
    tree = grow(GameConfig(env=f"{__name__}:Blind"))
    found = assess(tree, uniform(tree), forfeits=True)

    assert found.values == pytest.approx((0, 0)) and found.best == pytest.approx((1, 0))


class CalledOpen(Liars):
    """Says that every seat sees all, though each sees its own die alone."""

    info = GameInfo(name="CalledOpen", small_tree=SmallTree(is_open=True))


def test_hidden_information_in_open_tree_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"is_open = True: .* the game hides something; set it"):
        grow(GameConfig(env=f"{__name__}:CalledOpen"))
