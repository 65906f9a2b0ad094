"""A small game as an `Environment`, of which one seat sees a coin."""

import random

from unstable.config import GameConfig
from unstable.games.environment import Environment, EnvStep
from unstable.games.info import GameInfo, SmallTree
from unstable.types import Observation


class CoinPoker(Environment):
    """Seat 0 sees a coin and bets or stays; seat 1 calls or folds without seeing it."""

    info = GameInfo(env="CoinPoker", name="CoinPoker", small_tree=SmallTree(is_open=False))

    def __init__(self, stake: float = 2.0) -> None:
        self.stake = stake
        self.made: list[str] = []
        self.notice = ""

    def reset(self, seats: int, seed: int) -> None:
        assert seats == 2, "two seats"
        self.coin = random.choice(["heads", "tails"])

    @property
    def mover(self) -> int:
        return len(self.made) % 2

    def observe(self) -> Observation:
        seen = f"The coin shows {self.coin}." if self.mover == 0 else "You do not see the coin."
        rules = f"Coin poker. You are seat {self.mover}."
        return Observation(
            seat=self.mover, rules=rules, events=[*self.made], board=seen, notice=self.notice
        )

    def legal_moves(self) -> list[str]:
        return ["[call]", "[fold]"] if self.made else ["[bet]", "[stay]"]

    def step(self, action: str) -> EnvStep:
        if action == "[crash]":
            raise RuntimeError("the table breaks")
        if action not in self.legal_moves():
            self.notice = "bet, stay, call or fold"
            return EnvStep(over=False, refused=True, reason=self.notice)
        self.made, self.notice = [*self.made, action], ""
        return EnvStep(over=action != "[bet]", refused=False, reason=f"ended by {action}")

    def payoffs(self) -> list[float]:
        won = {"[stay]": 0.0, "[fold]": 1.0}.get(self.made[-1], self.stake)
        sign = -1 if self.made[-1] == "[call]" and self.coin == "tails" else 1
        return [sign * won, -sign * won]

    def scale(self) -> float:
        return self.stake


COIN = GameConfig(env=f"{__name__}:CoinPoker")
