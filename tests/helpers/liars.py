"""Liar's dice of one die a seat, as OpenSpiel has it, whose dice are rolled in several ways."""

import random
from random import choices
from typing import Any

import numpy as np
from numpy.random import default_rng

from unstable.games.environment import Environment, EnvStep
from unstable.games.info import GameInfo, SmallTree
from unstable.types import Observation

ROLLS: dict[str, Any] = {
    "randint": lambda seed, faces: [random.randint(1, faces) for _ in range(2)],
    "sample": lambda seed, faces: [1 + roll % faces for roll in _sampled(faces)],
    "choices": lambda seed, faces: random.choices(range(1, faces + 1), k=2),
    "choices by name": lambda seed, faces: choices(range(1, faces + 1), k=2),
    "float": lambda seed, faces: [1 + int(random.random() * faces) for _ in range(2)],
    "numpy": lambda seed, faces: np.random.randint(1, faces + 1, size=2).tolist(),
    "numpy's own": lambda seed, faces: default_rng(seed).integers(1, faces + 1, size=2).tolist(),
    "own": lambda seed, faces: _rolled(random.Random(seed), faces),
    "system": lambda seed, faces: _rolled(random.SystemRandom(), faces),
}


def _sampled(faces: int) -> list[int]:
    (roll,) = random.sample(range(faces * faces), 1)
    return [roll // faces, roll % faces]


def _rolled(generator: random.Random, faces: int) -> list[int]:
    return [generator.randint(1, faces) for _ in range(2)]


class Liars(Environment):
    """Bids of a number of dice and a face go up until one is called; the highest face is wild."""

    info = GameInfo(env="Liars", name="Liars", small_tree=SmallTree(is_open=False))

    def __init__(self, roll: str = "randint", faces: int = 3) -> None:
        self.roll, self.faces = roll, faces
        self.made: list[str] = []

    def reset(self, seats: int, seed: int) -> None:
        assert seats == 2
        self.dice = ROLLS[self.roll](seed, self.faces)

    @property
    def mover(self) -> int:
        return len(self.made) % 2

    def observe(self) -> Observation:
        board = f"Your die shows {self.dice[self.mover]}."
        return Observation(
            seat=self.mover, rules="Liar's dice.", events=[*self.made], board=board, notice=""
        )

    def legal_moves(self) -> list[str]:
        bids = [f"[{number} {face}]" for number in (1, 2) for face in range(1, self.faces + 1)]
        return bids[bids.index(self.made[-1]) + 1 :] + ["[liar]"] if self.made else bids

    def step(self, action: str) -> EnvStep:
        if action not in self.legal_moves():
            return EnvStep(over=False, refused=True, reason="bid higher, or call")
        self.made.append(action)
        return EnvStep(over=action == "[liar]", refused=False)

    def payoffs(self) -> list[float]:
        number, face = map(int, self.made[-2].strip("[]").split())
        bidder = (len(self.made) - 2) % 2
        true = sum(die in (face, self.faces) for die in self.dice) >= number
        won = [-1.0, -1.0]
        won[bidder if true else 1 - bidder] = 1.0
        return won
