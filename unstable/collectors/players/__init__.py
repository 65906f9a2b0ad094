"""Players: one file per kind, all with the same interface.

An observation and a seed come in, an answer goes out. Players never see other seats' reasoning.
"""

from unstable.collectors.players.base import OpponentPlayer
from unstable.collectors.players.model import CheckpointPlayer
from unstable.collectors.players.openai import OpenAIPlayer
from unstable.collectors.players.programs import ExpertPlayer, RandomPlayer, RulesPlayer
from unstable.collectors.players.python import PythonPlayer
from unstable.config import (
    CheckpointOpponent,
    ExpertOpponent,
    FixedOpponent,
    OpenAIOpponent,
    PythonOpponent,
    RandomOpponent,
    RulesOpponent,
)
from unstable.config.plugins import registered

PLAYERS: dict[type[FixedOpponent], type[OpponentPlayer]] = {
    RandomOpponent: RandomPlayer,
    ExpertOpponent: ExpertPlayer,
    RulesOpponent: RulesPlayer,
    PythonOpponent: PythonPlayer,
    CheckpointOpponent: CheckpointPlayer,
    OpenAIOpponent: OpenAIPlayer,
}
"""The class that plays each built-in kind of fixed opponent, by its section of the config."""


def player_class(opponent: FixedOpponent) -> type[OpponentPlayer]:
    """Return the class that plays a fixed opponent: built in, or installed under its kind."""
    if (built_in := PLAYERS.get(type(opponent))) is not None:
        return built_in
    found: type[OpponentPlayer] = registered("opponents")[opponent.kind].load()
    return found
