"""Games: envs behind one protocol, safe to interleave, bounded, seeded and read by seat.

A config, a seed and actions come in, observations and outcomes go out. `environment.py` is the
protocol, `textarena.py` its first implementation, `catalog/` what is known of each game. The names
below are for games from outside (docs/adding_a_game.md).
"""

from unstable.games.environment import Environment, EnvStep
from unstable.games.info import (
    Compact,
    Expert,
    GameInfo,
    Payoffs,
    Question,
    SmallTree,
    Teams,
    always,
    never,
)
from unstable.games.questions import line_of_play, named_move
from unstable.types import Observation

__all__ = [
    "Compact",
    "EnvStep",
    "Environment",
    "Expert",
    "GameInfo",
    "Observation",
    "Payoffs",
    "Question",
    "SmallTree",
    "Teams",
    "always",
    "line_of_play",
    "named_move",
    "never",
]
