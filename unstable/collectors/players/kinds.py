"""Which class plays each kind of fixed opponent."""

from unstable.collectors.players.base import OpponentPlayer
from unstable.collectors.players.checkpoint import CheckpointPlayer
from unstable.collectors.players.expert import ExpertPlayer
from unstable.collectors.players.openai import OpenAIPlayer
from unstable.collectors.players.python import PythonPlayer
from unstable.collectors.players.random import RandomPlayer
from unstable.collectors.players.rules import RulesPlayer
from unstable.config import (
    CheckpointOpponent,
    ExpertOpponent,
    FixedOpponent,
    OpenAIOpponent,
    PythonOpponent,
    RandomOpponent,
    RulesOpponent,
)

PLAYERS: dict[type[FixedOpponent], type[OpponentPlayer]] = {
    RandomOpponent: RandomPlayer,
    ExpertOpponent: ExpertPlayer,
    RulesOpponent: RulesPlayer,
    PythonOpponent: PythonPlayer,
    CheckpointOpponent: CheckpointPlayer,
    OpenAIOpponent: OpenAIPlayer,
}
"""By the opponent's section of the config."""


def player_class(opponent: FixedOpponent) -> type[OpponentPlayer]:
    """The class that plays a fixed opponent."""
    return PLAYERS[type(opponent)]
