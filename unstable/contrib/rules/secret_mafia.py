"""Rule bot for SecretMafia."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from unstable.contrib.rules.textarena import best
from unstable.games.info import Events, Probabilities

_TALK = re.compile(r"Player (\d+): (.*)", re.DOTALL)
_FINDING = re.compile(r"Player (\d+) IS (NOT )?a Mafia member\.")
_NAMED = re.compile(r"\[(\d+)\]")


@dataclass(slots=True)
class Heard:
    """Beliefs of a seat, from all events that it saw."""

    found: dict[int, bool] = field(default_factory=dict)  # mafia or not, by number, as found
    claimant: int | None = None  # first player to announce an inquiry's result
    claimed: dict[int, bool] = field(default_factory=dict)  # mafia or not, by number, as claimed
    hostile: Counter[int] = field(default_factory=Counter)
    """Count by player of its talk or votes that named the claimant or a player found harmless."""

    def add(self, event: str) -> None:
        """Add the next event that the seat saw."""
        said = _TALK.fullmatch(event)
        if said is None:
            if own := _FINDING.fullmatch(event):
                self.found |= _findings([own])
            return
        speaker, text = int(said[1]), said[2]
        if findings := _findings(_FINDING.finditer(text)):
            self.claimant = speaker if self.claimant is None else self.claimant
            if speaker == self.claimant:
                self.claimed |= findings
        for named in map(int, _NAMED.findall(text)):
            self.hostile[speaker] += named == self.claimant or self.claimed.get(named) is False

    def prey(self, number: int) -> tuple[bool, bool, int]:
        """Return a sort key for the value of a player as a target of the mafia."""
        return number == self.claimant, self.claimed.get(number) is False, -number

    def known(self, own: int, is_detective: bool) -> dict[int, bool]:
        """Return the players that a village seat believes to be mafia, or not to be.

        A seat believes the claimant, unless it is the detective or the claimant accuses it.
        """
        if self.claimant is None:
            return self.found
        if is_detective or self.claimed.get(own):
            return self.found | {self.claimant: True}
        return self.claimed | {self.claimant: False}


def _findings(said: Iterable[re.Match[str]]) -> dict[int, bool]:
    return {int(each[1]): each[2] is None for each in said}


def moves(env: Any, events: Events) -> Probabilities:
    """Return the rule bot's moves: the detective announces its findings, and the village follows.

    The mafia votes, by night and day, for the detective, else for a player found harmless, else for
    the lowest number. The village votes for mafia found by the detective, else for the player most
    hostile to the detective or to players found harmless, else for the lowest number. The doctor
    saves the detective.
    """
    state, own = env.state.game_state, env.state.current_player_id
    roles, phase = state["player_roles"], state["phase"].value
    heard = Heard()
    for event in events:
        heard.add(event)
    others = [number for number in state["alive_players"] if number != own]
    if roles[own] == "Mafia":
        prey = [number for number in others if roles[number] != "Mafia"]
        return _talk("") if phase == "Day-Discussion" else _choice(prey, heard.prey)
    known = heard.known(own, roles[own] == "Detective")
    if phase == "Night-Doctor":
        harmless = [number for number in others if known.get(number) is False]
        return _choice(harmless or others, lambda number: number == heard.claimant)
    if phase == "Night-Detective":
        return _choice(others, lambda number: (number not in known, heard.hostile[number]))
    if phase == "Day-Discussion":
        return _talk(" ".join(_said(number, heard.found[number]) for number in heard.found))
    return _choice(others, lambda number: (known.get(number, 0.5), heard.hostile[number], -number))


def _talk(text: str) -> Probabilities:
    return {text or "I know no more than you.": 1.0}


def _said(number: int, mafia: bool) -> str:
    return f"Player {number} IS {'' if mafia else 'NOT '}a Mafia member."


def _choice(numbers: list[int], score: Callable[[int], Any]) -> Probabilities:
    return best({f"[{number}]": score(number) for number in numbers})
