"""The action critic of a checkpoint, which values moves outside of training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from unstable.config import ConfigError
from unstable.learners.turns import state_move
from unstable.learners.value_models import ValueNetwork
from unstable.models.checkpoint import read_critic


class SavedCritic:
    """Values of the moves of whole states in self-play, by a network that no longer learns."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        """Initialize with what `read_critic` returned."""
        self._network = ValueNetwork(seed=0)
        self._network.learns = False
        self._network.load_state_dict(dict(state))

    @classmethod
    def read(cls, folder: Path, env: str, field: str) -> Self:
        """Read the critic of a checkpoint; raises `ConfigError` if it cannot value an env's moves.

        The message begins with `field`.
        """
        state = read_critic(folder)
        if state is None:
            raise ConfigError(
                f"{field}: {folder} has no critic of kind network that sees the state; give a "
                "checkpoint of a run with learner.algorithm.name = vrpo"
            )
        if (env, 0) not in map(tuple, state["numbers"]):
            raise ConfigError(f"{field}: the critic in {folder} has not seen {env}; give another")
        return cls(state)

    def values(
        self, env: str, state: Sequence[int], answers: Sequence[Sequence[int]], seats: int
    ) -> list[list[float]]:
        """Return the value of each answer for each seat, in rewards: a row of `seats` each."""
        self._network.take([state_move(env, [*state], [*answer]) for answer in answers])
        return [row[:seats] for row in self._network.values().tolist()]
