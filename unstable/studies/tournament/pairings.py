"""Games of a tournament, in order, as a function of its design and the results so far.

An interrupted tournament thus resumes with unchanged games. A deal is played from every side: two
sides once each way, more sides with each player alone at each side against the other at the rest.
All pairs get identical deals.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import combinations, product
from typing import NamedTuple

from msgspec.structs import replace
from pydantic import BaseModel, NonNegativeFloat, PositiveInt

from unstable.config import GameConfig, RunConfig
from unstable.league.fit import Ranking, ranking
from unstable.league.past import tallies
from unstable.types import GameResult, GameSpec, PlayerId, SeatSpec
from unstable.types.seeds import derive_seed

ROUND = 256
"""Games of a round, after which results are recorded; a kill loses at most one round."""
FIRST_DEALS = 2
"""Deals of each pair before a budget goes to the widest intervals."""
STEPS = 20
"""Parts of a budget; after each one, results decide where the next goes."""


class Design(BaseModel):
    """Design of a tournament in addition to its config: players with temperatures, and its size."""

    players: list[tuple[str, NonNegativeFloat]]
    deals: PositiveInt  # of each pair in each env
    budget: PositiveInt | None = None  # total games, replaces `deals`
    with_itself: bool = False  # each player meets itself too, as joint policy correlation needs
    baseline: str | None = None  # player whose self-play values positions

    @property
    def seats(self) -> list[SeatSpec]:
        """Each player as it sits in games."""
        return [SeatSpec(player=PlayerId(name), temperature=heat) for name, heat in self.players]


Pair = tuple[int, int]
"""Two players by their index, or one twice."""


class _Deal(NamedTuple):
    game: GameConfig
    pair: Pair
    number: int


def next_round(config: RunConfig, design: Design, results: Sequence[GameResult]) -> list[GameSpec]:
    """Return the next round's games after `results` of whole rounds; empty at the end."""
    done = len(results)
    deals = design.deals if design.budget is None else FIRST_DEALS
    fixed = [
        _Deal(game, pair, number)
        for number in range(deals)
        for game, pair in product(config.games, _pairs(design))
    ]
    specs = [spec for deal in fixed for spec in _specs(config, design, deal)]
    if done < len(specs):
        return _numbered(specs[done : done + ROUND], done)
    if design.budget is None or done >= design.budget:
        return []
    deal = max(len(_seatings(game, (0, 1))) for game in config.games)
    size = min(ROUND, max(design.budget // STEPS, deal), design.budget - done)
    chosen = _widest(config, design, results, size)
    return _numbered([spec for deal in chosen for spec in _specs(config, design, deal)], done)


def least_budget(config: RunConfig, design: Design) -> int:
    """Return the least budget: the games of the first deals of all pairs."""
    sizes = [len(_seatings(game, pair)) for game in config.games for pair in _pairs(design)]
    return FIRST_DEALS * sum(sizes)


def number_of_games(config: RunConfig, design: Design) -> int:
    """Return the number of games of all rounds; with a budget, an upper bound."""
    return design.budget or least_budget(config, design) // FIRST_DEALS * design.deals


def _pairs(design: Design) -> list[Pair]:
    places = range(len(design.players))
    itself = [(place, place) for place in places] if design.with_itself else []
    return [*combinations(places, 2), *itself]


def _seatings(game: GameConfig, pair: Pair) -> list[tuple[int, ...]]:
    """Return the player of the pair at each side, for each game of a deal."""
    one, other = pair
    sides = range(len(game.sides))
    alone = [
        tuple(single if side == own else rest for side in sides)
        for own in sides
        for single, rest in ((one, other), (other, one))
    ]
    return list(dict.fromkeys(alone))


def _specs(config: RunConfig, design: Design, deal: _Deal) -> list[GameSpec]:
    """Return the games of a deal, not numbered yet."""
    seats, game, found = design.seats, deal.game, []
    for held in _seatings(game, deal.pair):
        by_seat = {seat: seats[held[at]] for at, side in enumerate(game.sides) for seat in side}
        found.append(
            GameSpec(
                game_id=0,
                purpose="eval",
                env=game.key,
                seed=derive_seed(config.seed, "tournament", game.key, deal.number),
                seats=tuple(by_seat[seat] for seat in range(game.seats)),
                teams=game.teams,
            )
        )
    return found


def _numbered(specs: Iterable[GameSpec], first: int) -> list[GameSpec]:
    return [replace(spec, game_id=number) for number, spec in enumerate(specs, first)]


def _widest(
    config: RunConfig, design: Design, results: Sequence[GameResult], size: int
) -> list[_Deal]:
    """Choose deals of at most `size` games, each for the pair with the then widest interval."""
    places = {name: place for place, (name, _) in enumerate(design.players)}
    played: dict[tuple[str, Pair], list[Ranking]] = defaultdict(list)
    for result in results:
        ranked = ranking(result)
        assert ranked is not None, "every game has two sides"
        held = {places[name] for name in ranked.players}
        played[ranked.env, (min(held), max(held))].append(ranked)
    waiting, chosen = [], list[_Deal]()
    for order, (game, pair) in enumerate(product(config.games, _pairs(design))):
        games, each = played[game.key, pair], len(_seatings(game, pair))
        names = design.players[pair[0]][0], design.players[pair[1]][0]
        score = tallies(games)[names].score()
        waiting.append((score.low - score.high, order, len(games), each, game, pair))
    heapify(waiting)
    while True:
        width, order, count, each, game, pair = waiting[0]
        size -= each
        if size < 0:
            return chosen
        chosen.append(_Deal(game, pair, count // each))
        narrower = width * math.sqrt(count / (count + each))
        heapreplace(waiting, (narrower, order, count + each, each, game, pair))
