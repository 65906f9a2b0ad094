"""The action critic of a checkpoint, which values moves outside of training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from unstable.config import ConfigError
from unstable.learners.turns import state_move
from unstable.learners.value_models import ValueNetwork
from unstable.models.checkpoint import fitting, read_checkpoint


class SavedCritic:
    """Values of the moves of whole states in self-play, by a network that no longer learns."""

    def __init__(self, network: ValueNetwork) -> None:
        self._network = network

    @classmethod
    def read(cls, folder: Path, field: str) -> Self:
        """Read the critic of a checkpoint.

        Raises `ConfigError` that begins with `field` unless it is a network that sees the state.
        """
        critic = read_checkpoint(folder)[1]["algorithm"].get("critic", {})
        if critic.get("sees") != "state" or "network" not in critic["model"]:
            raise ConfigError(
                f"{field}: {folder} has no critic of kind network that sees the state; give a "
                "checkpoint of a run with learner.algorithm.name = vrpo"
            )
        network = ValueNetwork(seed=0)
        network.learns = False
        with fitting(folder):
            network.load_state_dict(critic["model"])
        return cls(network)

    def values(
        self, env: str, state: Sequence[int], answers: Sequence[Sequence[int]], seats: int
    ) -> list[list[float]]:
        """Return the value of each answer for each seat, in rewards: a row of `seats` each."""
        self._network.take([state_move(env, [*state], [*answer]) for answer in answers])
        return [row[:seats] for row in self._network.values().tolist()]
