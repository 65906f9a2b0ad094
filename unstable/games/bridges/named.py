"""Games whose actions are known by name, as text: what all libraries' bridges have in common."""

from abc import abstractmethod
from collections.abc import Sequence

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


def told_apart(names: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Names of actions, with their numbers where two are alike."""
    return [
        name if name and names.count(name) == 1 else f"{name} #{number}".strip()
        for name, number in zip(names, numbers, strict=True)
    ]


def position(env: NamedEnvironment) -> str:
    """What the mover sees, in one line, with the legal actions after a colon."""
    return line(env.board, env.mover, env.legal_moves())


def line(seen: str, player: int, names: Sequence[str]) -> str:
    """A decision in one line: who is to move, what that seat sees, and its legal actions.

    >>> line("K\\nbet", 1, ["call", "fold"])
    'P1 K ; bet: call | fold'
    """
    return f"P{player} {in_line(seen)}: {' | '.join(names)}"


def in_line(seen: str) -> str:
    """A text in one line."""
    return " ".join(" ; ".join(seen.strip().splitlines()).split())
