"""Who trains when in a league of several policies, and whom of the frozen versions it meets.

Roles are those of AlphaStar (Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z): mains meet
themselves and all frozen versions, exploiters the newest mains alone, league exploiters all frozen
versions. All here are functions of the league's file and of results.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from unstable.league.matchmaking import prioritized
from unstable.studies.league.config import LeagueConfig, MeetConfig, MemberConfig
from unstable.types.tallies import Tally

FORGOTTEN = 0.5
"""What a game counts after each further generation: the member has become another meanwhile."""
LEAST_WEIGHT = 1e-3
"""Of a version, where the mean is 1: none is never met."""


class MemberTurn(NamedTuple):
    """A member's training in a generation, and the version that it ends with: Turn("main", 1)"""

    member: str
    generation: int  # from 1 on

    @property
    def name(self) -> str:
        """What its run is called, and the frozen version as an opponent."""
        return f"{self.member}-{self.generation}"


def turns(league: LeagueConfig) -> list[MemberTurn]:
    """All turns in order. A member that would have nobody to meet sits a generation out."""
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
    """The turns that have to be over before one."""
    order = {name: place for place, name in enumerate(league.members)}

    def is_before(other: MemberTurn) -> bool:
        if other.generation != turn.generation:
            return other.generation < turn.generation
        return league.turns == "alternate" and order[other.member] < order[turn.member]

    return [other for other in all_turns if is_before(other)]


def met(
    league: LeagueConfig, turn: MemberTurn, all_turns: Sequence[MemberTurn]
) -> list[MemberTurn]:
    """The frozen versions that a turn's run meets, the oldest first."""
    frozen = needed(league, turn, all_turns)
    if league.members[turn.member].role == "exploiter":
        targets = league.targets(turn.member)
        return newest([each for each in frozen if each.member in targets])
    most = league.meet.newest or len(frozen)
    own = {name: [each for each in frozen if each.member == name] for name in league.members}
    return [each for each in frozen if each in own[each.member][-most:]]


def newest(versions: Sequence[MemberTurn]) -> list[MemberTurn]:
    """The newest version of each member."""
    return [*{each.member: each for each in versions}.values()]


def begins_anew(member: MemberConfig, last: Tally | None) -> bool:
    """Whether it begins a generation from the start; `last` are its results in the one before."""
    if last is None or member.restarts == "each":
        return True
    return member.restarts == "won" and last.share >= member.threshold


def weights(
    meet: MeetConfig, versions: Sequence[str], results: Sequence[Mapping[str, Tally]]
) -> dict[str, float]:
    """How often each version is met, where the mean is 1.

    `results` are the member's against each in its last generations, the newest first.
    Prioritized fictitious self-play (`matchmaking.pfsp`) weighs by the score so far, of which drawn
    games are the prior.
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
