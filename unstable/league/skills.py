"""How strong players are, by TrueSkill, match after match; here, or in a process beside this one.

    python -m unstable.league.skills DESCRIPTOR

is that process. A match costs the `trueskill` package 140 us and more, which in asynchronous play
the loop's thread has no time for; what it says is the same to the bit.
"""

import contextlib
import logging
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import trueskill

log = logging.getLogger(__name__)
ENVIRONMENT = trueskill.TrueSkill()
WAIT_S = 60.0
"""Until the process answers; it is asked when it has little left to do."""
Skill = tuple[float, float]
"""A player's mu and sigma."""


class Match(NamedTuple):
    """A free-for-all that is over: Match(("main@3", "random"), (1.0, -1.0), 0.1)"""

    players: tuple[str, ...]
    scores: tuple[float, ...]
    draw_probability: float


class Skills(Protocol):
    """Everybody's skill, by name."""

    def put(self, player: str, mu: float, sigma: float, *, pinned: bool = False) -> None:
        """Give a player this skill; a pinned one keeps it."""

    def rate(self, matches: Sequence[Match]) -> None:
        """Take in matches, one after the other."""

    def all(self) -> dict[str, Skill]:
        """By now, in the order in which players were first given one."""


class OwnSkills:
    """`Skills` of this process."""

    def __init__(self) -> None:
        self._ratings: dict[str, trueskill.Rating] = {}
        self._pinned: set[str] = set()

    def put(self, player: str, mu: float, sigma: float, *, pinned: bool = False) -> None:
        """As `Skills.put`."""
        self._ratings[player] = ENVIRONMENT.create_rating(mu, sigma)
        if pinned:
            self._pinned.add(player)

    def rate(self, matches: Sequence[Match]) -> None:
        """As `Skills.rate`."""
        for players, scores, draw_probability in matches:
            ranked = sorted(set(scores), reverse=True)
            groups = [(self._ratings[player],) for player in players]
            ranks = [ranked.index(score) for score in scores]
            environment = trueskill.TrueSkill(draw_probability=draw_probability)
            for player, (rating,) in zip(players, environment.rate(groups, ranks), strict=True):
                if player not in self._pinned:
                    self._ratings[player] = rating

    def all(self) -> dict[str, Skill]:
        """As `Skills.all`."""
        return {player: (rating.mu, rating.sigma) for player, rating in self._ratings.items()}


class SkillsApart:
    """`Skills` of a process beside this one, which is waited for where they are asked for.

    Where it has ended, as for want of memory, matches since the last answer are rated anew here,
    and so are all that follow.
    """

    def __init__(
        self, connection: socket.socket, process: "subprocess.Popen[bytes] | None" = None
    ) -> None:
        """`connection` leads to `main`, in `process`."""
        self._process = process
        connection.settimeout(WAIT_S)
        self._connection = connection
        self._answers = connection.makefile("rb")
        self._own: OwnSkills | None = None
        self._known: dict[str, Skill] = {}  # as of the last answer
        self._pinned: set[str] = set()
        self._since: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def put(self, player: str, mu: float, sigma: float, *, pinned: bool = False) -> None:
        """As `Skills.put`."""
        if pinned:
            self._pinned.add(player)
        self._ask("put", player, mu, sigma, pinned=pinned)

    def rate(self, matches: Sequence[Match]) -> None:
        """As `Skills.rate`, but that nobody waits for it."""
        self._ask("rate", matches)

    def _ask(self, method: str, *arguments: Any, **named: Any) -> None:
        if self._own is not None:
            getattr(self._own, method)(*arguments, **named)
            return
        asked = method, arguments, named
        self._since.append(asked)
        try:
            self._connection.sendall(pickle.dumps(asked, pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            self._take_over(error)

    def all(self) -> dict[str, Skill]:
        """As `Skills.all`."""
        if self._own is None:
            try:
                self._connection.sendall(pickle.dumps(("all", (), {})))
                self._known = pickle.load(self._answers)
                self._since.clear()
                return dict(self._known)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                self._take_over(error)
        assert self._own is not None
        return self._own.all()

    def _take_over(self, error: Exception) -> None:
        log.warning("the process that rates players has ended (%r); it is done here now", error)
        self._own = OwnSkills()
        for player, (mu, sigma) in self._known.items():
            self._own.put(player, mu, sigma, pinned=player in self._pinned)
        for method, arguments, named in self._since:
            getattr(self._own, method)(*arguments, **named)
        self._since.clear()

    def close(self) -> None:
        """End the process."""
        self._answers.close()
        self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def main(descriptor: int) -> None:
    """Do as asked until nobody can ask any more."""
    connection = socket.socket(fileno=descriptor)
    skills = OwnSkills()
    with contextlib.suppress(EOFError, OSError), connection.makefile("rwb") as stream:
        while True:
            method, arguments, named = pickle.load(stream)
            answer = getattr(skills, method)(*arguments, **named)
            if method == "all":
                pickle.dump(answer, stream, pickle.HIGHEST_PROTOCOL)
                stream.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
