"""Games whose actions are known by name, as text: what all libraries' bridges have in common."""

from abc import abstractmethod

from unstable.games.environment import Environment, EnvStep
from unstable.types import Observation


class NamedEnvironment(Environment):
    """What the mover sees, and its legal actions by name, are there once they are set."""

    def __init__(self, rules: str) -> None:
        if not isinstance(rules, str):
            raise TypeError(f"rules = {rules!r} is no text")
        self._rules = rules
        self._shown = self._notice = ""
        self._legal: dict[str, int] = {}  # the library's numbers of the legal actions, by name

    @property
    @abstractmethod
    def seats(self) -> int:
        """How many there are."""

    @abstractmethod
    def _play(self, number: int) -> bool:
        """Make the mover's move of that number; whether the game is over."""

    @property
    def board(self) -> str:
        """What the seat that moved last was shown, or is shown now."""
        return self._shown

    def observe(self) -> Observation:
        """What the mover sees, and the names of its actions."""
        who = f" You are player {self.mover}." if self.seats > 1 else ""
        return Observation(
            seat=self.mover,
            rules=f"{self._rules}{who} Answer with one of the legal actions.",
            events=[],
            board=f"{self._shown}\nLegal actions: {' | '.join(self._legal)}",
            notice=self._notice,
        )

    def legal_moves(self) -> list[str]:
        """The names of the legal actions."""
        return [*self._legal]

    def step(self, action: str) -> EnvStep:
        """Make the move of that name."""
        number = self._legal.get(action.strip())
        if number is None:
            self._notice = f"{action.strip()} is no legal action."
            return EnvStep(over=False, refused=True, reason=self._notice)
        self._notice = ""
        return EnvStep(over=self._play(number), refused=False)
