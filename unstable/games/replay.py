"""A recorded game played again from its seed and actions, for what the record leaves out."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from unstable.config import GameConfig
from unstable.config.plugins import faults_to
from unstable.games.game import Game
from unstable.games.services import game_info

logger = logging.getLogger(__name__)


class Replayed(NamedTuple):
    """A position as the seat to move has it before it: Replayed("O| |X ...", {"[4]": 1.0}, None)"""

    board: str
    action_values: dict[str, float] | None  # outcome with perfect play; None: not solved
    mix: dict[str, float] | None  # what an equilibrium plays, where positions are hidden
    prompted: str = ""  # as a compact prompt has it, in marks of its own; empty: it has the board


def is_known(config: GameConfig) -> bool:
    """Whether it is a game of the table, none of a user's own."""
    return game_info(config).name != ""


def replay(config: GameConfig, seed: int, actions: Sequence[str]) -> list[Replayed]:
    """The position before each action, and the last one; fewer where the game goes otherwise."""
    positions = []
    with faults_to(lambda _: logger.exception("a game of %s cannot be replayed", config.key)):
        game = Game(config, seed)
        for action in actions:
            if game.done:
                break
            observation = game.observe()
            positions.append(_position(game)._replace(prompted=observation.position))
            game.step(action)
        positions.append(Replayed(game.board, None, None))
    return positions


def _position(game: Game) -> Replayed:
    action_values, info = game.action_values(), game.info
    hidden = action_values is None and info.small_tree is not None and info.expert is not None
    return Replayed(game.board, action_values, game.expert_moves() if hidden else None)
