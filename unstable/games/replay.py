"""Replay of recorded games from their seeds and actions, for data that records omit."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from unstable.config import GameConfig
from unstable.config.plugins import faults_to
from unstable.games.game import Game
from unstable.games.services import game_info

logger = logging.getLogger(__name__)


class Replayed(NamedTuple):
    """A position from the perspective of its mover: Replayed("O| |X ...", {"[4]": 1.0}, None)."""

    board: str
    action_values: dict[str, float] | None  # outcome under perfect play; None: not solved
    mix: dict[str, float] | None  # an equilibrium's probabilities, for imperfect information
    prompted: str = ""  # the position of a compact prompt; empty: the prompt has the board


def is_known(config: GameConfig) -> bool:
    """Return whether the game has metadata with a name, such as a game of the catalog."""
    return not config.is_driven and game_info(config).name != ""


def replay(config: GameConfig, seed: int, actions: Sequence[str]) -> list[Replayed]:
    """Return the position before each action, and the last one; fewer if the replay diverges."""
    positions = []
    with faults_to(lambda _: logger.exception("replay of a %s game failed", config.key)):
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
