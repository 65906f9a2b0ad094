"""Results of a tournament's games as plain values, and their tables."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from statistics import stdev
from typing import Any, NamedTuple

import numpy as np

from unstable.config import RunConfig
from unstable.games.services import is_zero_sum
from unstable.league.evaluation import side_payoff
from unstable.league.fit import ranking
from unstable.league.past import Tallies, tallies
from unstable.league.ratings import Registry
from unstable.records.tables import Table
from unstable.records.text import fixed, mean_interval, number, percent, signed
from unstable.solving.control_variates import corrected
from unstable.studies.ratings import least_record, points, rated, remarks, trueskill_record
from unstable.studies.tournament.entrants import Entrant
from unstable.studies.tournament.luck import Lucks
from unstable.studies.tournament.metagame import (
    Matrix,
    alpha_rank,
    joint_policy_correlation,
    nash_average,
    nash_shares,
)
from unstable.studies.tournament.pairings import Design
from unstable.tracking.lines import print_lines, print_table
from unstable.types import WORTH, GameResult, PlayerId, Side
from unstable.types.intervals import Interval, Z, mean, student_interval
from unstable.types.tallies import Least, Tally, least_score

ENDS = ("mean", "low", "high")
MOST_WORTH = 10_000.0
"""Maximum factor of games saved; values of exactly this pair leave no luck."""
SHOWN = (
    *("player", "points, 95 %", "mu", "sigma", "score"),
    *("Nash, 95 %", "vs Nash", "alpha-rank", "games"),
)
"""Columns of the standings in the terminal, which is narrower than a page."""


class Payoff(NamedTuple):
    """A player's mean payoff against another, in its unit and as a share of the stakes.

    In a game without payoffs, a score and its share from -1 to 1.

    Payoff(0.25, Interval(0.25, 0.1, 0.4), 0.125, 0.04)
    """

    mean: float
    interval: Interval | None  # of the mean, if known
    share: float  # of the stakes
    error: float  # standard error of the share
    factor: float = 1.0  # plain games that a game is worth


Pairs = dict[tuple[str, str], list[float]]
"""Figures of a player against another, one for each deal, in order."""


def by_deal(results: Sequence[GameResult], figure: Callable[[GameResult, Side], float]) -> Pairs:
    """Return a figure of players' sides, by ordered pair of players that met, and deal.

    A deal is one observation, the mean of its games from every side, which share the luck of the
    cards.
    """
    deals: dict[tuple[str, str], dict[tuple[str, int], list[float]]] = {}
    for result in results:
        spec, held = result.spec, defaultdict[str, list[float]](list)
        for side in spec.sides:
            held[spec.seats[side[0]].player.name].append(figure(result, side))
        for pair in permutations(held, 2):
            games = deals.setdefault(pair, {}).setdefault((spec.env, spec.seed), [])
            games.append(mean(held[pair[0]]))
    return {pair: [*map(mean, games.values())] for pair, games in deals.items()}


def _value(result: GameResult, side: Side) -> float:
    payoff = side_payoff(result, side)
    return WORTH[result.standing(side[0])] if payoff is None else payoff


def pair_payoffs(results: Sequence[GameResult]) -> dict[tuple[str, str], Payoff]:
    """Return payoffs of players that met, by ordered pair; empty if a game has no payoffs."""
    if any(result.stakes is None for result in results):
        return {}
    payoffs = by_deal(results, _value)
    shares = by_deal(results, lambda result, side: _value(result, side) / (result.stakes or 1))
    return {pair: _payoff(payoffs[pair], shares[pair]) for pair in payoffs}


def _payoff(means: Sequence[float], shares: Sequence[float]) -> Payoff:
    error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0
    return Payoff(mean(means), student_interval(means), mean(shares), error)


def pair_corrected(results: Sequence[GameResult], lucks: Lucks) -> dict[tuple[str, str], Payoff]:
    """Return payoffs, else scores, without the luck of known draws, by ordered pair.

    All games are of one env; pairs without an interval are left out. A game without a readable
    record has no luck.
    """

    def luck(result: GameResult, side: Side) -> float:
        by_seat = lucks.get(result.spec.game_id)
        return 0.0 if by_seat is None else mean(by_seat[seat] for seat in side)

    values, by_pair = by_deal(results, _value), by_deal(results, luck)
    stakes, payoffs = results[0].stakes, {}
    scale, least = (2.0, -1.0) if stakes is None else (1 / stakes, 0.0)
    for pair, each in values.items():
        found = corrected(each, by_pair[pair])
        if (ends := found.interval) is not None:
            error = scale * (ends.high - ends.low) / 2 / Z
            share, factor = scale * found.mean + least, min(found.factor, MOST_WORTH)
            payoffs[pair] = Payoff(found.mean, ends, share, error, factor)
    return payoffs


def payoff_matrix(
    names: Sequence[str],
    tallies: Mapping[tuple[str, str], Tally],
    payoffs: Mapping[tuple[str, str], Payoff],
) -> tuple[Matrix, Matrix]:
    """Return what the row's player wins from the column's, from -1 to 1, and standard errors.

    Values are payoffs over stakes, or wins minus losses per game if games have no payoffs.
    """
    matrix, errors = np.zeros((2, len(names), len(names)))
    for row, one in enumerate(names):
        for column, other in enumerate(names):
            if (found := payoffs.get((one, other))) is not None:
                matrix[row, column], errors[row, column] = found.share, found.error
            elif (tally := tallies.get((one, other))) is not None:
                score = tally.score()
                matrix[row, column] = 2 * score.mean - 1
                errors[row, column] = (score.high - score.low) / Z
    return matrix, errors


def won_together(names: Sequence[str], results: Sequence[GameResult]) -> Matrix:
    """Return mean sums of outcomes: the row's player at the first side, the column's elsewhere.

    A pair that has not met in these places has 0.
    """
    totals = np.zeros((2, len(names), len(names)))
    place = {name: at for at, name in enumerate(names)}
    for result in results:
        first, *others = [result.spec.seats[side[0]].player.name for side in result.spec.sides]
        if len(set(others)) == 1 and first in place and others[0] in place:
            totals[:, place[first], place[others[0]]] += sum(result.outcomes), 1
    return np.asarray(totals[0] / np.maximum(totals[1], 1))


def standings(
    config: RunConfig,
    design: Design,
    players: Sequence[Entrant],
    results: Sequence[GameResult],
    forfeits: float,
    lucks: Lucks,
) -> dict[str, Any]:
    """Return all results, by player and by pair; `lucks` are empty without a baseline."""
    games = [ranked for each in results if (ranked := ranking(each)) is not None]
    names = [each.player for each in players]
    against = tallies(games)
    payoffs = pair_payoffs(results)
    kept = pair_corrected(results, lucks) if lucks else {}
    matrix, errors = payoff_matrix(names, against, payoffs | kept)
    nash, alpha = nash_average(matrix), alpha_rank(matrix)
    ends = nash_shares(matrix, errors, config.seed)
    fitted = rated(games, forfeits)
    found = {
        **fitted,
        "baseline": design.baseline,
        "trueskill": _trueskill(config, names, results, fitted["draws"]),
        "pairs": [
            {
                **{"player": one, "opponent": other, **against[one, other]._asdict()},
                "score": against[one, other].score()._asdict(),
                "payoff": _payoff_record(payoffs.get((one, other)), len(config.games)),
                "corrected": _payoff_record(kept.get((one, other)), len(config.games)),
            }
            for one in names
            for other in names
            if (one, other) in against
        ],
        "worth": "payoffs over stakes" if payoffs else "wins minus losses per game",
        "nash": [
            {
                **{"player": name, "worth": nash.worth[place], "alpha_rank": alpha[place]},
                "share": dict(zip(ENDS, (nash.mixture[place], *ends[place]), strict=True)),
            }
            for place, name in enumerate(names)
        ],
        "least": [
            {"player": each.player, **least_record(least)}
            for each, least in _least(players, against)
        ],
    }
    if design.with_itself:
        found["together"] = _together(config, names, results)
    return found


def _payoff_record(found: Payoff | None, envs: int) -> dict[str, Any] | None:
    """Return a payoff as plain values; None with several envs, whose units differ."""
    if found is None or envs > 1:
        return None
    ends = found.interval or (found.mean, None, None)
    return {**dict(zip(ENDS, ends, strict=True)), "factor": found.factor}


def _trueskill(
    config: RunConfig,
    names: Sequence[str],
    results: Sequence[GameResult],
    draws: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return TrueSkill ratings in game order; `draws` is the share of draws of equals, by env."""
    known = {name: config.fixed_opponents.get(name) for name in names}
    programs = [PlayerId(name) for name, each in known.items() if each and each.is_program]
    ids = list(map(PlayerId, names))
    registry = Registry(ids, programs[0] if programs else None, pool_size=1, draws=draws)
    registry.record(results)
    return [{"player": e.player.name, **trueskill_record(e)} for e in registry.ratings()]


def _least(players: Sequence[Entrant], against: Tallies) -> list[tuple[Entrant, Least]]:
    """Return each run's newest version with its least score against the run's other versions."""
    runs: dict[Any, list[Entrant]] = {}
    for each in players:
        if each.root is not None:
            runs.setdefault(each.root, []).append(each)
    found = []
    for versions in runs.values():
        *past, newest = sorted(versions, key=lambda each: each.version)
        own = {each.player: against.get((newest.player, each.player)) for each in past}
        worst = least_score({name: tally for name, tally in own.items() if tally is not None})
        if worst is not None:
            found.append((newest, worst))
    return found


def _together(config: RunConfig, names: list[str], results: Sequence[GameResult]) -> dict[str, Any]:
    """Return joint policy correlation as plain values; None in zero-sum games."""
    if all(map(is_zero_sum, config.games)):
        return {"players": names, "matrix": None, "own": None, "others": None, "loss": None}
    matrix = won_together(names, results)
    found = joint_policy_correlation(matrix)
    return {"players": names, "matrix": matrix.tolist(), **found._asdict(), "loss": found.loss}


def show(found: Mapping[str, Any]) -> None:
    """Print the standings, the payoffs and remarks."""
    print_table(standings_table(found).only(*SHOWN))
    print()
    print_table(pairs_table(found))
    print()
    print_lines(lines(found))


def ordered(found: Mapping[str, Any]) -> list[str]:
    """Return all players, best first; players without a counted game come last."""
    rows = (*found["players"], *found["nash"])
    return list(dict.fromkeys(row["player"] for row in rows))


def standings_table(found: Mapping[str, Any]) -> Table:
    """Return the table of players, best first."""
    nash = {row["player"]: row for row in found["nash"]}
    skills = {row["player"]: row for row in found["trueskill"]}
    rows = []
    for row in found["players"]:
        own, skill = nash[row["player"]], skills[row["player"]]
        tally = Tally(row["wins"], row["draws"], row["losses"])
        rows.append(
            [
                *(row["player"], points(row), fixed(skill["mu"], 1), fixed(skill["sigma"], 1)),
                *(fixed(tally.share), mean_interval(own["share"], percent), signed(own["worth"])),
                *(percent(own["alpha_rank"]), f"{row['games']:,}"),
                f"{row['wins']} / {row['draws']} / {row['losses']}",
                f"{row['forfeits']}",
            ]
        )
    return Table(
        f"{found['games']:,} games; {found['reference'] or 'the mean'} is 0 points",
        [*("player", "points, 95 %", "mu", "sigma", "score", "Nash, 95 %", "vs Nash")]
        + [*("alpha-rank", "games", "won / drawn / lost", "forfeits")],
        rows,
        "mu, sigma: TrueSkill. Nash: the player's share of the Nash average, a mixture that no "
        "player beats. vs Nash: its payoff against that mixture. Alpha-rank: its share of time in "
        "a population that better players take over. See docs/ratings.md.",
    )


def pairs_table(found: Mapping[str, Any]) -> Table:
    """Return the table of results between players, each pair once."""
    pays = any(pair["payoff"] is not None for pair in found["pairs"])
    corrects = found["baseline"] is not None
    order = ordered(found)
    rows = [
        [
            *(pair["player"], pair["opponent"], mean_interval(pair["score"])),
            *(f"{pair[name]:,}" for name in ("wins", "draws", "losses")),
            *([mean_interval(pair["payoff"], signed)] * pays),
            *([mean_interval(pair["corrected"], signed if pays else fixed)] * corrects),
            *([_worth(pair)] * corrects),
        ]
        for pair in sorted(found["pairs"], key=lambda pair: order.index(pair["player"]))
        if order.index(pair["player"]) < order.index(pair["opponent"])
    ]
    columns = ["player", "against", "score, 95 %", "won", "drawn", "lost"]
    columns += ["payoff, 95 %"] * pays + ["corrected, 95 %", "worth games"] * corrects
    said = "Intervals hold for each pair alone. Payoffs are means per game, in the game's unit."
    if corrects:
        said += (
            f" Corrected: {'payoff' if pays else 'score'} without the luck of known draws, by "
            f"values of {found['baseline']}'s self-play. Worth: plain games with an equal interval."
        )
    return Table("Pairs", columns, rows, said)


def _worth(*pairs: Mapping[str, Any]) -> str:
    """Return how many plain games the pairs' games are worth."""
    games = [sum(pair[name] for name in ("wins", "draws", "losses")) for pair in pairs]
    factors = [1.0 if (own := pair["corrected"]) is None else own["factor"] for pair in pairs]
    worth = sum(count * factor for count, factor in zip(games, factors, strict=True))
    return f"{number(worth)} ({number(worth / sum(games))} times)"


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines below the tables."""
    said = remarks(found)
    apart = [
        f"{pair['player']} against {pair['opponent']}"
        for pair in found["pairs"]
        if pair["player"] < pair["opponent"] and (payoff := pair["payoff"]) is not None
        if (pair["score"]["mean"] - 0.5) * payoff["mean"] < 0
    ]
    if apart:
        said.append(f"more wins but a lower payoff: {', '.join(apart)}; ratings count wins")
    if not found["cycles"]:
        said.append("no significant cycle in these games")
    said.append(f"Nash average and alpha-rank use each pair's {found['worth']}")
    if (baseline := found.get("baseline")) is not None:
        worth = _worth(*(pair for pair in found["pairs"] if pair["player"] < pair["opponent"]))
        said.append(f"control variates by {baseline}: all games are worth {worth}")
    if (together := found.get("together")) is None:
        return said
    if together["matrix"] is None:
        line = "joint policy correlation: undefined, since these games are zero-sum"
    else:
        line = (
            f"joint policy correlation: sum of outcomes {fixed(together['own'])} with partners of "
            f"the same run, {fixed(together['others'])} with others; average proportional loss "
            f"{percent(together['loss'])}"
        )
    return [*said, line]
