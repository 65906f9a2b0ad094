"""What the games of a tournament amount to, as plain values, and how that is shown."""

from collections.abc import Mapping, Sequence
from typing import Any

from unstable.commands.session import print_lines, print_table
from unstable.config import RunConfig
from unstable.games.services import is_zero_sum
from unstable.league.fit import ranking
from unstable.league.ratings import Registry
from unstable.league.standings import Tallies, tallies
from unstable.records.tables import Table
from unstable.records.text import fixed, mean_interval, percent, signed
from unstable.studies.ratings import least_record, points, rated, remarks, trueskill_record
from unstable.studies.tournament.entrants import Entrant
from unstable.studies.tournament.metagame import (
    alpha_rank,
    joint_policy_correlation,
    nash_average,
    nash_shares,
)
from unstable.studies.tournament.pairings import Design
from unstable.studies.tournament.payoffs import pair_payoffs, payoff_matrix, won_together
from unstable.types import GameResult, PlayerId
from unstable.types.tallies import Least, least_score

ENDS = ("mean", "low", "high")
SHOWN = (
    *("player", "points, 95 %", "mu", "sigma", "score"),
    *("Nash, 95 %", "against it", "alpha-rank", "games"),
)
"""Columns of the standings in the terminal, which is narrower than a page."""


def standings(
    config: RunConfig,
    design: Design,
    players: Sequence[Entrant],
    results: Sequence[GameResult],
    forfeits: float,
) -> dict[str, Any]:
    """All that is found, by player and by pair."""
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
                "payoff": _payoff(payoffs.get((one, other)), len(config.games)),
            }
            for one in names
            for other in names
            if (one, other) in against
        ],
        "worth": "pay-offs over stakes" if payoffs else "wins less losses, per game",
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


def _payoff(found: Any, envs: int) -> dict[str, Any] | None:
    """Of one env: pay-offs of several have no unit in common."""
    if found is None or envs > 1:
        return None
    return dict(zip(ENDS, found.interval or (found.mean, None, None), strict=True))


def _trueskill(
    config: RunConfig,
    names: Sequence[str],
    results: Sequence[GameResult],
    draws: Mapping[str, float],
) -> list[dict[str, Any]]:
    """In the order of the games; `draws` is how often equals draw, by env."""
    known = {name: config.fixed_opponents.get(name) for name in names}
    programs = [PlayerId(name) for name, each in known.items() if each and each.is_program]
    ids = list(map(PlayerId, names))
    registry = Registry(ids, programs[0] if programs else None, pool_size=1, draws=draws)
    registry.record(results)
    return [{"player": e.player.name, **trueskill_record(e)} for e in registry.ratings()]


def _least(players: Sequence[Entrant], against: Tallies) -> list[tuple[Entrant, Least]]:
    """Of each run with several versions here, the newest one's against the others."""
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
    """Joint policy correlation; of games whose pay-offs cancel there is none."""
    if all(map(is_zero_sum, config.games)):
        return {"players": names, "matrix": None, "own": None, "others": None, "loss": None}
    matrix = won_together(names, results)
    found = joint_policy_correlation(matrix)
    return {"players": names, "matrix": matrix.tolist(), **found._asdict(), "loss": found.loss}


def show(found: Mapping[str, Any]) -> None:
    """Print the standings, the pay-offs and what else is to be said."""
    print_table(standings_table(found).only(*SHOWN))
    print()
    print_table(pairs_table(found))
    print()
    print_lines(lines(found))


def standings_table(found: Mapping[str, Any]) -> Table:
    """The players, the best first."""
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
            "against it": signed(own["worth"]),
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
        "TrueSkill's mu and sigma. Nash: the player's share of the mixture against which nobody "
        "wins, and what each wins against that. Alpha-rank: the share of time of a population that "
        "better players take over. docs/ratings.md.",
    )


def pairs_table(found: Mapping[str, Any]) -> Table:
    """Who won how often from whom, each pair once."""
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
        [*columns, *(["pay-off, 95 %"] * pays)],
        rows,
        "Intervals are each for itself. A pay-off is the mean of a game, in its unit.",
    )


def lines(found: Mapping[str, Any]) -> list[str]:
    """What is said below the tables."""
    said = remarks(found)
    apart = [
        f"{pair['player']} against {pair['opponent']}"
        for pair in found["pairs"]
        if pair["player"] < pair["opponent"] and (payoff := pair["payoff"]) is not None
        if (pair["score"]["mean"] - 0.5) * payoff["mean"] < 0
    ]
    if apart:
        said.append(f"who wins more games is paid less in {', '.join(apart)}; ratings go by wins")
    if not found["cycles"]:
        said.append("no cycle is supported by these games")
    said.append(f"Nash average and alpha-rank are of the pairs' {found['worth']}")
    if (together := found.get("together")) is None:
        return said
    if together["matrix"] is None:
        line = "joint policy correlation: the pay-offs of these games cancel, whoever meets"
    else:
        line = (
            f"joint policy correlation: {fixed(together['own'])} together with a player of the "
            f"same run, {fixed(together['others'])} with another's; the average proportional loss "
            f"is {percent(together['loss'])}"
        )
    return [*said, line]
