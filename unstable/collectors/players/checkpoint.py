"""An adapter that is on disk, served beside the policy by the same engine."""

from unstable.collectors.players.base import OpponentPlayer, Player, ServeAdapter
from unstable.config import CheckpointOpponent, ConfigError, FixedOpponent, GameConfig
from unstable.models.adapters import CONFIG_FILE, WEIGHTS_FILE
from unstable.types import SeatSpec


def adapter_name(opponent: FixedOpponent) -> str:
    """The name under which an engine serves the opponent's adapter."""
    return f"checkpoint:{opponent.key}"


class CheckpointPlayer(OpponentPlayer):
    """The local model with the opponent's adapter."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a folder without an adapter."""
        assert isinstance(opponent, CheckpointOpponent)
        for file in (CONFIG_FILE, WEIGHTS_FILE):
            if not (opponent.adapter_folder / file).is_file():
                raise ConfigError(
                    f"{field}.path = {opponent.path!r}: no {file} there; "
                    "give the folder of a LoRA adapter"
                )

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        """The player of a seat."""
        return model(adapter_name(opponent))
