"""What makes an evaluation's game the same one in an evaluation of another shape."""

from collections.abc import Iterable, Mapping

from unstable.config import RunConfig
from unstable.league.evaluation import evaluation_games

Named = list[tuple[str, float]]
"""Figures of games, each by the game's name."""


def named(config: RunConfig, by_game: Mapping[int, float]) -> Named:
    """Figures of version 0 by what is played, in place of a number that follows from the order."""
    names = _names(config)
    return [(names[number], figure) for number, figure in sorted(by_game.items())]


def numbered(config: RunConfig, figures: Iterable[tuple[str, float]]) -> dict[int, float]:
    """The same by the numbers that the games have in this config; those that it lacks are left out.

    So a version is only compared with version 0 in a game that both have played alike.
    """
    numbers = {name: number for number, name in _names(config).items()}
    return {numbers[name]: figure for name, figure in figures if name in numbers}


def _names(config: RunConfig) -> dict[int, str]:
    """For each game of the evaluation: env and deal, who sits where, and how they answer."""
    return {
        spec.game_id: repr(
            (
                *(spec.env, spec.seed, config.eval.constrained),
                *((seat.player.name, seat.temperature, seat.votes) for seat in spec.seats),
            )
        )
        for spec in evaluation_games(config, version=0)
    }
