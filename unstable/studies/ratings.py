"""TrueSkill and Elo ratings of runs, rebuilt from their files: `unstable ratings RUN...`."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from unstable.commands.session import status
from unstable.config import ConfigError
from unstable.league.fit import Ranking, Strength, fit
from unstable.league.past import tallies
from unstable.records.folder import existing_run
from unstable.records.reading import Skipped
from unstable.records.tables import Table
from unstable.records.text import fixed, interval, mean_interval, number, percent
from unstable.report.comparison import identity
from unstable.report.run import names_of
from unstable.studies.rebuilding import Rebuilt, rebuild
from unstable.studies.tournament.metagame import cycles
from unstable.tracking.lines import print_lines, print_table
from unstable.types import BASE, Rating
from unstable.types.intervals import Interval
from unstable.types.tallies import Least, added, least_against_past

PROGRAMS = ("random", "expert", "rules")
"""Candidates for the reference of the fit, at 0 points: the first one that has played."""


def ratings(roots: Sequence[Path], forfeits: float, *, as_json: bool = False) -> dict[str, Any]:
    """Print TrueSkill and Elo ratings of the runs' players; return what `as_json` prints.

    `forfeits` is the weight of a forfeited game in the fit, from 0 to 1. Raises `ConfigError` for a
    folder that is not a run's, and if no game compares two players.
    """
    check_weight(forfeits)
    skipped = Skipped()
    runs = [rebuild(existing_run(root), skipped) for root in roots]
    if skipped:
        status(skipped.line)
    names = Names(runs)
    games = [names.game(at, game) for at, run in enumerate(runs) for game in run.games]
    if not any(len(set(game.players)) > 1 for game in games):
        raise ConfigError(
            f"RUN_DIR = {str(roots[0])!r}: no recorded game has two different players; give a run "
            "with opponents"
        )
    found = {
        **rated(games, forfeits),
        "trueskill": [
            {"player": names.player(at, each.player.name), **trueskill_record(each)}
            for at, run in enumerate(runs)
            for each in run.ratings
        ],
        "least": [
            {"player": names.player(at, policy), **least_record(least)}
            for at, run in enumerate(runs)
            for policy, least in least_against_past(tallies(run.games)).items()
        ],
        "met": [
            {"player": names.player(at, player), "drawn": drawn, "expected": expected}
            for at, run in enumerate(runs)
            for player, (drawn, expected) in run.met.items()
        ],
        "drawn": [
            {"env": names.player(at, env), "drawn": drawn, "expected": expected}
            for at, run in enumerate(runs)
            for env, (drawn, expected) in run.drawn.items()
        ],
        "rebuilt": [{"run": str(run.folder.root), "difference": _difference(run)} for run in runs],
    }
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        show(found)
        for run in runs:
            print(_comparison(run))
    return found


def check_weight(forfeits: float) -> None:
    """Raise `ConfigError` unless the weight of forfeits is from 0 to 1."""
    if not 0 <= forfeits <= 1:
        raise ConfigError(f"--forfeits = {forfeits:g}: must be from 0 (ignored) to 1")


def _difference(run: Rebuilt) -> float | str | None:
    return "other players" if run.difference == math.inf else run.difference


def _comparison(run: Rebuilt) -> str:
    """Return a line that compares the rebuilt ratings with the run's `ratings.json`."""
    place = run.folder.ratings
    if run.difference is None:
        return f"{place}: not found; TrueSkill is rebuilt from the games alone"
    if not run.difference:
        return f"{place}: identical to the rebuilt ratings"
    if run.difference == math.inf:
        return f"{place}: has other players; the run is active, or games are missing"
    return f"{place}: differs by up to {run.difference:.2g}, since game order differs"


# Players of several runs


class Names:
    """Unambiguous names of players and games across several runs."""

    def __init__(self, runs: Sequence[Rebuilt]) -> None:
        self._labels = names_of([run.folder.root.resolve() for run in runs])
        configs = [run.config for run in runs]
        models = {(each.model.name, each.model.quantize) for each in configs}
        players = _alike(
            {key: each.player for key, each in config.fixed_opponents.items()} for config in configs
        )
        self._alike = players | ({BASE.name} if len(models) == 1 else set())
        self._envs = _alike(
            {key: identity(game) for key, game in config.game_by_key.items()} for config in configs
        )

    def player(self, run: int, name: str) -> str:
        """Return a player's name, prefixed by its run's label unless all runs mean one player."""
        is_alone = len(self._labels) == 1 or name in self._alike
        return name if is_alone else f"{self._labels[run]}/{name}"

    def game(self, run: int, game: Ranking) -> Ranking:
        """Return a game with unambiguous names of its env and players."""
        env = game.env if game.env in self._envs else f"{self._labels[run]}/{game.env}"
        players = tuple(self.player(run, name) for name in game.players)
        return game._replace(env=env, players=players)


def _alike(known: Iterable[Mapping[str, object]]) -> set[str]:
    """Return the names that have equal values in all mappings that contain them."""
    found: dict[str, object] = {}
    differ = set()
    for name, value in chain(*(each.items() for each in known)):
        if found.setdefault(name, value) != value:
            differ.add(name)
    return found.keys() - differ


# Results and their tables


def rated(games: Sequence[Ranking], forfeits: float) -> dict[str, Any]:
    """Return the fit over all games and per env, side advantages and cycles, as plain values."""
    anchor = next((name for name in PROGRAMS if any(name in g.players for g in games)), None)
    whole, against = fit(games, forfeits=forfeits, anchor=anchor), tallies(games)
    envs = sorted({game.env for game in games})
    by_env = {
        env: fit([g for g in games if g.env == env], forfeits=forfeits, anchor=anchor)
        for env in (envs if len(envs) > 1 else [])
    }
    counted = [game for game in games if game.forfeit and len({*game.players}) > 1]
    forfeited = Counter(player for game in counted for player in _last(game))
    return {
        "games": len(games),
        "forfeit_weight": forfeits,
        "reference": whole.reference,
        "players": [
            {
                **_strength(each),
                "ahead": each.ahead._asdict(),
                **added(t for pair, t in against.items() if pair[0] == each.player)._asdict(),
                "forfeits": forfeited[each.player],
            }
            for each in whole.strengths
        ],
        "envs": {env: [_strength(e) for e in found.strengths] for env, found in by_env.items()},
        "advantages": [
            {"env": each.env, "side": each.side, **_ends(each.points)} for each in whole.advantages
        ],
        "draws": whole.draws,
        "cycles": cycles(against),
        "apart": whole.apart,
    }


def _last(game: Ranking) -> set[str]:
    """Return the players with the worst rank: in a forfeited game, the offenders."""
    worst = max(game.ranks)
    return {p for p, rank in zip(game.players, game.ranks, strict=True) if rank == worst}


def _strength(each: Strength) -> dict[str, Any]:
    return {"player": each.player, **_ends(each.points), "games": each.games}


def _ends(points: Interval) -> dict[str, float]:
    return {"points": points.mean, "low": points.low, "high": points.high}


def trueskill_record(rating: Rating) -> dict[str, Any]:
    return {"mu": rating.mu, "sigma": rating.sigma, "games": rating.games}


def least_record(least: Least) -> dict[str, Any]:
    """Return a least score as plain values."""
    return {**least._asdict(), "score": least.score._asdict()}


def show(found: Mapping[str, Any]) -> None:
    """Print the result of `rated`, and `trueskill`, `least`, `met` and `drawn` if present."""
    met = {row["player"]: row for row in found.get("met", ())}
    known = {row["player"]: row for row in found.get("trueskill", ())}
    zero = found["reference"] or "the mean"
    title = f"Ratings: Elo points from one fit of {found['games']:,} games, {zero} is 0; TrueSkill"
    columns = ["player", "points, 95 %", "mu", "sigma", "games", "won", "drawn", "lost", "forfeits"]
    rows = []
    for row in found["players"]:
        skill = known.get(row["player"], {"mu": None, "sigma": None})
        counts = (row[name] for name in ("games", "wins", "draws", "losses", "forfeits"))
        cells = [row["player"], points(row), *(fixed(skill[name], 1) for name in ("mu", "sigma"))]
        drawn = _met_cells(met.get(row["player"])) if met else ()
        rows.append([*cells, *(f"{count:,}" for count in counts), *drawn])
    print_table(Table(title, [*columns, *(["sampled", "expected"] if met else [])], rows))
    for each in env_tables(found):
        print_table(each)
    if envs := [[row["env"], *_met_cells(row)] for row in found.get("drawn", ())]:
        print_table(Table("Environments sampled", ["env", "sampled", "expected"], envs))
    print_lines(remarks(found))


def env_tables(found: Mapping[str, Any]) -> list[Table]:
    """Return a table of points per env; none for games of a single env."""
    columns = ["player", "points, 95 %", "games"]
    return [
        Table(
            f"In {env}",
            columns,
            [[row["player"], points(row), f"{row['games']:,}"] for row in rows],
        )
        for env, rows in found["envs"].items()
    ]


def _met_cells(met: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the cells of how often a name was drawn and of the expected count, "" if unknown."""
    return ("", "") if met is None else (f"{met['drawn']:,}", fixed(met["expected"], 1))


def points(row: Mapping[str, float]) -> str:
    """Format points with their interval."""
    return interval(row["points"], row["low"], row["high"], lambda value: fixed(value, 0))


def remarks(found: Mapping[str, Any]) -> list[str]:
    """Return sentences on results that the table does not show."""
    lines = [
        f"{each['env']}: side {each['side']} is worth {points(each)} points"
        for each in found["advantages"]
        if each["low"] > 0
    ]
    lines += [
        f"{env}: equal players draw {percent(rate)}" for env, rate in found["draws"].items() if rate
    ]
    for part in found["apart"]:
        lines.append(f"no games connect {', '.join(part)} with the others, only the prior")
    lines += [f"cycle: {' beats '.join([*each, each[0]])}" for each in found["cycles"]]
    return [*lines, *map(_least_line, found.get("least", ()))]


def _least_line(each: Mapping[str, Any]) -> str:
    score, opponents = each["score"], each["compared"]
    of = "the only past version" if opponents == 1 else f"of {opponents} past versions"
    less = f"; {each['left_out']} with fewer games are excluded" if each["left_out"] else ""
    return (
        f"{each['player']}: lowest score against its past versions is "
        f"{mean_interval(score)}, against {each['opponent']} "
        f"({number(each['games'])} games; {of}{less})"
    )
