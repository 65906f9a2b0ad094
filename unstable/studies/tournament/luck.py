"""Luck in the games of a tournament, by policies that are recorded before the first game."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from unstable.commands.corrected import exact_model, exact_policies, luck_in
from unstable.config import ConfigError, RunConfig, shown
from unstable.games.services import why_not_solved
from unstable.loop.protocols import Actor
from unstable.records.reading import Skipped, read_records
from unstable.solving.tree import grow
from unstable.studies.tournament.pairings import Design
from unstable.types import RecordedGame, Shares

Lucks = Mapping[int, Sequence[float]]
"""Luck of each seat, in payoffs, by game number."""
Policies = dict[str, dict[int, list[float]]]
"""Probabilities of the actions of each decision, by player, of players that have exact ones."""
UNIFORM = "random"


def check_baseline(config: RunConfig, design: Design) -> None:
    """Raise `ConfigError` if the baseline's self-play cannot value positions of the game."""
    place, (game, *others) = f"--baseline = {shown(design.baseline)}", config.games
    seats = {seat.player.name: seat for seat in design.seats}
    own = seats.get(str(design.baseline))
    if own is None:
        raise ConfigError(f"{place}: not among the players; use one of {', '.join(seats)}")
    if design.baseline != UNIFORM and exact_model(config, own) is None:
        raise ConfigError(
            f"{place}: its moves have no exact probabilities; use base, a version at temperature 1 "
            "or random"
        )
    if others:
        raise ConfigError(f"{place}: requires a single game; choose one by --game")
    if (why := why_not_solved(game)) is not None:
        raise ConfigError(f"{place}: {game.key} {why}, or leave it out")


async def fixed_before(actors: Sequence[Actor], config: RunConfig, design: Design) -> Policies:
    """Return the policies that determine the luck in games; `actors` serve the players."""
    found = await exact_policies(actors, config, config.games[0].key, design.seats)
    rows = {seat.player.name: shares.items() for seat, shares in found.items()}
    return {name: {number: [*row] for number, row in each} for name, each in rows.items()}


def lucks(config: RunConfig, design: Design, policies: Policies, games: Path) -> Lucks:
    """Return the luck in recorded games, by values of positions in self-play of the baseline."""
    game = config.games[0]
    tree = grow(game, config.eval.exploitability.nodes)
    counts = [len(node.actions) for node in tree.decisions]
    uniform = {number: [1 / count] * count for number, count in enumerate(counts)}
    values: Shares = policies.get(str(design.baseline), uniform)
    exact = {s: policies[s.player.name] for s in design.seats if s.player.name in policies}
    own = luck_in(config, game.key, tree, values, exact, design.seats)
    played = read_records(games, RecordedGame, Skipped())
    return {result.spec.game_id: own.by_seat(result) for result in played}
