"""Games that a program outside plays: nothing of them is known here but the seats."""

from typing import NoReturn

from unstable.games.environment import Environment, EnvStep
from unstable.games.info import GameInfo
from unstable.types import Observation


class DrivenEnvironment(Environment):
    """Stands for a game whose loop is a program's; it can be described, but never played."""

    info = GameInfo(name="driver")
    lists_moves = False

    def reset(self, seats: int, seed: int) -> None:
        """Raises `ValueError`."""
        _refuse()

    @property
    def mover(self) -> int:
        """Raises `ValueError`."""
        _refuse()

    def observe(self) -> Observation:
        """Raises `ValueError`."""
        _refuse()

    def legal_moves(self) -> list[str]:
        """Raises `ValueError`."""
        _refuse()

    def step(self, action: str) -> EnvStep:
        """Raises `ValueError`."""
        _refuse()

    def payoffs(self) -> list[float]:
        """Raises `ValueError`."""
        _refuse()


def _refuse() -> NoReturn:
    raise ValueError("the game is a program's outside, and cannot be played without it")
