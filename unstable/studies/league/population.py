"""Training order of a league of several policies, and each one's opponents.

Roles follow AlphaStar (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z): mains meet themselves
and all frozen versions, exploiters only the newest mains, league exploiters all frozen versions.
All functions depend only on the league's file and on results.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from unstable.league.matchmaking import prioritized
from unstable.studies.league.config import LeagueConfig, MeetConfig, MemberConfig
from unstable.types.tallies import Tally

FORGOTTEN = 0.5
"""Discount of a game's weight per further generation, since the member changes meanwhile."""
LEAST_WEIGHT = 1e-3
"""Lower bound of a version's weight, relative to a mean of 1."""


class MemberTurn(NamedTuple):
    """A member's training in a generation, and the version at its end: MemberTurn("main", 1)"""

    member: str
    generation: int  # from 1 on

    @property
    def name(self) -> str:
        """Name of its run, and of its frozen version as an opponent."""
        return f"{self.member}-{self.generation}"


def turns(league: LeagueConfig) -> list[MemberTurn]:
    """Return all turns in order. A member without any opponent skips a generation."""
    found: list[MemberTurn] = []
    for generation in range(1, league.generations + 1):
        for name, member in league.members.items():
            turn = MemberTurn(name, generation)
            draw = member.shares
            if draw.self + draw.past or met(league, turn, found):
                found.append(turn)
    return found


def needed(
    league: LeagueConfig, turn: MemberTurn, all_turns: Sequence[MemberTurn]
) -> list[MemberTurn]:
    """Return the turns that must be complete before a turn starts."""
    order = {name: place for place, name in enumerate(league.members)}

    def is_before(other: MemberTurn) -> bool:
        if other.generation != turn.generation:
            return other.generation < turn.generation
        return league.turns == "alternate" and order[other.member] < order[turn.member]

    return [other for other in all_turns if is_before(other)]


def met(
    league: LeagueConfig, turn: MemberTurn, all_turns: Sequence[MemberTurn]
) -> list[MemberTurn]:
    """Return the frozen versions that a turn's run meets, oldest first."""
    frozen = needed(league, turn, all_turns)
    if league.members[turn.member].role == "exploiter":
        targets = league.targets(turn.member)
        return newest([each for each in frozen if each.member in targets])
    most = league.meet.newest or len(frozen)
    own = {name: [each for each in frozen if each.member == name] for name in league.members}
    return [each for each in frozen if each in own[each.member][-most:]]


def newest(versions: Sequence[MemberTurn]) -> list[MemberTurn]:
    """Return the newest version of each member."""
    return [*{each.member: each for each in versions}.values()]


def begins_anew(member: MemberConfig, last: Tally | None) -> bool:
    """Return whether a member restarts; `last` is its tally in its previous generation, if any."""
    if last is None or member.restarts == "each":
        return True
    return member.restarts == "won" and last.share >= member.threshold


def weights(
    meet: MeetConfig, versions: Sequence[str], results: Sequence[Mapping[str, Tally]]
) -> dict[str, float]:
    """Return each version's weight as an opponent, with mean 1.

    `results` are the member's tallies against each in its last generations, newest first.
    Prioritized fictitious self-play (`matchmaking.pfsp`) weighs by the score so far, with drawn
    games as the prior.
    """
    scores = []
    for name in versions:
        points, games = meet.prior / 2, meet.prior
        for age, tallies in enumerate(results):
            tally, counts = tallies.get(name, Tally()), FORGOTTEN**age
            points += counts * tally.share * tally.games
            games += counts * tally.games
        scores.append(points / games)
    if meet.rule == "uniform" or not scores:
        return dict.fromkeys(versions, 1.0)
    found = prioritized(scores, meet.form == "even", meet.exponent)
    relative = [max(LEAST_WEIGHT, each / fmean(found)) for each in found]
    return {name: float(f"{each:.4g}") for name, each in zip(versions, relative, strict=True)}
