"""An adapter that is on disk, served beside the policy by the same engine."""

from unstable.collectors.players.base import OpponentPlayer, Player, ServeAdapter
from unstable.config import FixedOpponent, GameConfig
from unstable.types import SeatSpec


def adapter_name(opponent: FixedOpponent) -> str:
    """The name under which an engine serves the opponent's adapter."""
    return f"checkpoint:{opponent.key}"


class CheckpointPlayer(OpponentPlayer):
    """The local model with the opponent's adapter, which `models.inspection` has checked."""

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        """The player of a seat."""
        return model(adapter_name(opponent))
