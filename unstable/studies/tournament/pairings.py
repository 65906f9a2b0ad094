"""Which games a tournament consists of, in order: by its design and the results so far alone.

So one that was cut off goes on as if it had not been. A deal is played from every side: of two
sides once each way, of more with each player alone at each side against the other at all others.
All pairs get the same deals.
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
"""Games after which results are on file; what a kill costs at most."""
FIRST_DEALS = 2
"""Deals of each pair before a budget goes where intervals are widest."""
STEPS = 20
"""Parts of a budget, after each of which it is looked at anew where the next goes."""


class Design(BaseModel):
    """What a tournament is besides its config: who plays at which temperature, and how much."""

    players: list[tuple[str, NonNegativeFloat]]
    deals: PositiveInt  # of each pair in each env
    budget: PositiveInt | None = None  # games in all, in place of `deals`
    with_itself: bool = False  # each player meets itself too, as joint policy correlation needs


Pair = tuple[int, int]
"""Two players by their place, or one twice."""


class _Deal(NamedTuple):
    game: GameConfig
    pair: Pair
    number: int


def next_round(config: RunConfig, design: Design, results: Sequence[GameResult]) -> list[GameSpec]:
    """The games after these, which are whole rounds; none at the end."""
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
    """Games that a budget begins with."""
    sizes = [len(_seatings(game, pair)) for game in config.games for pair in _pairs(design)]
    return FIRST_DEALS * sum(sizes)


def number_of_games(config: RunConfig, design: Design) -> int:
    """Of all rounds; of a budget at most so many."""
    return design.budget or least_budget(config, design) // FIRST_DEALS * design.deals


def _pairs(design: Design) -> list[Pair]:
    places = range(len(design.players))
    itself = [(place, place) for place in places] if design.with_itself else []
    return [*combinations(places, 2), *itself]


def _seatings(game: GameConfig, pair: Pair) -> list[tuple[int, ...]]:
    """Who of the pair holds each side, game by game."""
    one, other = pair
    sides = range(len(game.sides))
    alone = [
        tuple(single if side == own else rest for side in sides)
        for own in sides
        for single, rest in ((one, other), (other, one))
    ]
    return list(dict.fromkeys(alone))


def _specs(config: RunConfig, design: Design, deal: _Deal) -> list[GameSpec]:
    """A deal's games, not numbered yet."""
    seats = [
        SeatSpec(player=PlayerId(name), temperature=temperature)
        for name, temperature in design.players
    ]
    game, found = deal.game, []
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
    """Deals of about so many games, each where the pair's interval would be the widest then."""
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
