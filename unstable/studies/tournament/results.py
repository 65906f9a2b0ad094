"""Results of a tournament's games as plain values, and their tables."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
from unstable.records.text import fixed, mean_interval, percent, signed
from unstable.studies.ratings import least_record, points, rated, remarks, trueskill_record
from unstable.studies.tournament.entrants import Entrant
from unstable.studies.tournament.metagame import (
    Matrix,
    alpha_rank,
    joint_policy_correlation,
    nash_average,
    nash_shares,
)
from unstable.studies.tournament.pairings import Design
from unstable.tracking.lines import print_lines, print_table
from unstable.types import GameResult, PlayerId
from unstable.types.intervals import Interval, Z, mean, student_interval
from unstable.types.tallies import Least, Tally, least_score

ENDS = ("mean", "low", "high")
SHOWN = (
    *("player", "points, 95 %", "mu", "sigma", "score"),
    *("Nash, 95 %", "vs Nash", "alpha-rank", "games"),
)
"""Columns of the standings in the terminal, which is narrower than a page."""


class Payoff(NamedTuple):
    """A player's mean payoff against another, in its unit and as a share of the stakes.

    Payoff(0.25, Interval(0.25, 0.1, 0.4), 0.125, 0.04)
    """

    mean: float
    interval: Interval | None  # of the mean, if known
    share: float  # of the stakes
    error: float  # standard error of the share


def pair_payoffs(results: Sequence[GameResult]) -> dict[tuple[str, str], Payoff]:
    """Return payoffs of players that met, by ordered pair; empty if a game has no payoffs.

    A deal is one observation, the mean of its games from every side, which share the luck of the
    cards.
    """
    deals: dict[tuple[str, str], dict[tuple[str, int], list[tuple[float, float]]]] = {}
    for result in results:
        spec = result.spec
        held = defaultdict[str, list[float]](list)
        for side in spec.sides:
            payoff = side_payoff(result, side)
            if payoff is None:
                return {}
            held[spec.seats[side[0]].player.name].append(payoff)
        assert result.stakes is not None
        for one, other in [(one, other) for one in held for other in held if one != other]:
            found = deals.setdefault((one, other), {}).setdefault((spec.env, spec.seed), [])
            found.append((mean(held[one]), mean(held[one]) / result.stakes))
    return {pair: _payoff([*by_deal.values()]) for pair, by_deal in deals.items()}


def _payoff(deals: Sequence[Sequence[tuple[float, float]]]) -> Payoff:
    means = [mean(payoff for payoff, _ in games) for games in deals]
    shares = [mean(share for _, share in games) for games in deals]
    error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0
    return Payoff(mean(means), student_interval(means), mean(shares), error)


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
) -> dict[str, Any]:
    """Return all results, by player and by pair."""
    games = [ranked for each in results if (ranked := ranking(each)) is not None]
    names = [each.player for each in players]
    against = tallies(games)
    payoffs = pair_payoffs(results)
    matrix, errors = payoff_matrix(names, against, payoffs)
    nash, alpha = nash_average(matrix), alpha_rank(matrix)
    ends = nash_shares(matrix, errors, config.seed)
    fitted = rated(games, forfeits)
    found = {
        **fitted,
        "trueskill": _trueskill(config, names, results, fitted["draws"]),
        "pairs": [
            {
                **{"player": one, "opponent": other, **against[one, other]._asdict()},
                "score": against[one, other].score()._asdict(),
                "payoff": _payoff_record(payoffs.get((one, other)), len(config.games)),
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
    return dict(zip(ENDS, found.interval or (found.mean, None, None), strict=True))


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


def standings_table(found: Mapping[str, Any]) -> Table:
    """Return the table of players, best first."""
    nash = {row["player"]: row for row in found["nash"]}
    skills = {row["player"]: row for row in found["trueskill"]}
    rows = []
    for row in found["players"]:
        own, skill = nash[row["player"]], skills[row["player"]]
        cells = {
            "player": row["player"],
            "points, 95 %": points(row),
            "mu": fixed(skill["mu"], 1),
            "sigma": fixed(skill["sigma"], 1),
            "score": fixed((row["wins"] + row["draws"] / 2) / max(1, row["games"])),
            "Nash, 95 %": mean_interval(own["share"], percent),
            "vs Nash": signed(own["worth"]),
            "alpha-rank": percent(own["alpha_rank"]),
            "games": f"{row['games']:,}",
            "won / drawn / lost": f"{row['wins']} / {row['draws']} / {row['losses']}",
            "forfeits": f"{row['forfeits']}",
        }
        rows.append([*cells.values()])
    return Table(
        f"{found['games']:,} games; {found['reference'] or 'the mean'} is 0 points",
        [*cells],
        rows,
        "mu, sigma: TrueSkill. Nash: the player's share of the Nash average, a mixture that no "
        "player beats. vs Nash: its payoff against that mixture. Alpha-rank: its share of time in "
        "a population that better players take over. See docs/ratings.md.",
    )


def pairs_table(found: Mapping[str, Any]) -> Table:
    """Return the table of results between players, each pair once."""
    pays = any(pair["payoff"] is not None for pair in found["pairs"])
    order = [row["player"] for row in found["players"]]
    rows = [
        [
            *(pair["player"], pair["opponent"], mean_interval(pair["score"])),
            *(f"{pair[name]:,}" for name in ("wins", "draws", "losses")),
            *([mean_interval(pair["payoff"], signed)] * pays),
        ]
        for pair in sorted(found["pairs"], key=lambda pair: order.index(pair["player"]))
        if order.index(pair["player"]) < order.index(pair["opponent"])
    ]
    columns = ["player", "against", "score, 95 %", "won", "drawn", "lost"]
    return Table(
        "Pairs",
        [*columns, *(["payoff, 95 %"] * pays)],
        rows,
        "Intervals hold for each pair alone. Payoffs are means per game, in the game's unit.",
    )


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
