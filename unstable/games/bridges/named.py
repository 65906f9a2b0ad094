"""Base class of bridges: games whose actions have names."""

from abc import abstractmethod
from collections.abc import Sequence

from unstable.games.environment import Environment, EnvStep
from unstable.types import Observation


class NamedEnvironment(Environment):
    """Environment whose subclasses set the mover's view and its legal actions by name."""

    def __init__(self, rules: str) -> None:
        if not isinstance(rules, str):
            raise TypeError(f"rules = {rules!r} is not a string")
        self._rules = rules
        self._shown = self._notice = ""
        self._legal: dict[str, int] = {}  # the library's number of each legal action's name

    @property
    @abstractmethod
    def seats(self) -> int:
        """Number of seats."""

    @abstractmethod
    def _play(self, number: int) -> bool:
        """Make the mover's move with this number; returns whether the game is over."""

    @property
    def board(self) -> str:
        """View of the mover, or of the seat that moved last after the end of the game."""
        return self._shown

    def observe(self) -> Observation:
        who = f" You are player {self.mover}." if self.seats > 1 else ""
        return Observation(
            seat=self.mover,
            rules=f"{self._rules}{who} Answer with one of the legal actions.",
            events=[],
            board=f"{self._shown}\nLegal actions: {' | '.join(self._legal)}",
            notice=self._notice,
        )

    def legal_moves(self) -> list[str]:
        return [*self._legal]

    def step(self, action: str) -> EnvStep:
        number = self._legal.get(action.strip())
        if number is None:
            self._notice = f"{action.strip()} is no legal action."
            return EnvStep(over=False, refused=True, reason=self._notice)
        self._notice = ""
        return EnvStep(over=self._play(number), refused=False)


def told_apart(names: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Return the names of actions, with numbers appended to equal or empty names."""
    return [
        name if name and names.count(name) == 1 else f"{name} #{number}".strip()
        for name, number in zip(names, numbers, strict=True)
    ]


def position(env: NamedEnvironment) -> str:
    """Return the mover's view in one line, with the legal actions after a colon."""
    return line(env.board, env.mover, env.legal_moves())


def line(seen: str, player: int, names: Sequence[str]) -> str:
    """Return a decision in one line: the player to move, its view, and its legal actions.

    >>> line("K\\nbet", 1, ["call", "fold"])
    'P1 K ; bet: call | fold'
    """
    return f"P{player} {in_line(seen)}: {' | '.join(names)}"


def in_line(seen: str) -> str:
    """Return a text in one line."""
    return " ".join(" ; ".join(seen.strip().splitlines()).split())
