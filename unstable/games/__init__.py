"""Games: environments behind one interface, safe to interleave, bounded, seeded and seen by seat.

`environment.py` defines the interface, `textarena.py` implements it for TextArena's envs, and
`catalog/` has the metadata of each game. The names below are the API for custom games
(docs/adding_a_game.md).
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
