"""Gymnasium's games of one seat: `games.env: gymnasium:ID`, such as `gymnasium:Taxi-v3`.

https://gymnasium.farama.org. `gymnasium.make` takes the ID; `my_module` registers `my_module:ID`.
A game is over when it is terminated or truncated, and pays the sum of its rewards. In games of
`_OPEN` the seat sees the text rendering, otherwise the observation.
"""

from functools import partial
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete

from unstable.config import ConfigError, nearest
from unstable.config.plugins import import_users
from unstable.contrib.environments.numbered import NumberedEnvironment, check_actions, made_class
from unstable.contrib.environments.readable import MASK

_OPEN = {
    "CliffWalking-v1": "the observation is the whole position",
    "CliffWalkingSlippery-v1": "the observation is the whole position",
    "FrozenLake-v1": "the observation is the whole position, and the map is known",
    "FrozenLake8x8-v1": "the observation is the whole position, and the map is known",
    "Taxi-v3": "the observation is the whole position",
    "Taxi-v4": "the observation is the whole position",
}
"""Games that seats see by their text rendering, with the reason why that reveals nothing hidden."""
_MEANINGS = {
    "Acrobot-v1": ("push back", "wait", "push forth"),
    "Blackjack-v1": ("stick", "hit"),
    "CartPole-v0": ("left", "right"),
    "CartPole-v1": ("left", "right"),
    "CliffWalking-v1": ("up", "right", "down", "left"),
    "CliffWalkingSlippery-v1": ("up", "right", "down", "left"),
    "FrozenLake-v1": ("left", "down", "right", "up"),
    "FrozenLake8x8-v1": ("left", "down", "right", "up"),
    "MountainCar-v0": ("left", "wait", "right"),
    "Taxi-v3": ("south", "north", "east", "west", "pick up", "drop off"),
    "Taxi-v4": ("south", "north", "east", "west", "pick up", "drop off"),
}
"""Meanings of actions by number, from Gymnasium's documentation."""


class GymnasiumEnvironment(NumberedEnvironment):
    """One play of an env from `make`. `environment_class` makes the class of each game."""

    seats = 1
    mover = 0

    def _made(self, args: dict[str, Any]) -> Any:
        made = super()._made(args)
        check_actions(self.info.name, made.action_space)
        return made

    def _begin(self, seed: int) -> None:
        self._observation, self._info = self.env.reset(seed=seed)
        self._total = 0.0

    def _move(self, number: int) -> bool:
        self._observation, reward, terminated, truncated, self._info = self.env.step(number)
        self._total += float(reward)
        return bool(terminated or truncated)

    def _look(self) -> tuple[Any, Discrete, Any]:
        seen, mask = self._observation, self._info.get(MASK)
        if mask is None and isinstance(seen, dict):
            mask = seen.get(MASK)
        return seen, self.env.action_space, mask

    def payoffs(self) -> list[float]:
        """Return the sum of the rewards."""
        return [self._total]


def environment_class(name: str) -> type[GymnasiumEnvironment]:
    """Return the class of a game; raises `ConfigError` if it does not exist."""
    place = f"target = {f'gymnasium:{name}'!r}"
    module, _, short = name.rpartition(":")
    if module:
        import_users(module, place)
    if short not in gymnasium.registry:
        hint = nearest(short, [*gymnasium.registry])
        raise ConfigError(f"{place}: unknown Gymnasium game; {hint}")
    return made_class(
        GymnasiumEnvironment,
        name,
        short,
        partial(gymnasium.make, short, disable_env_checker=True),
        meanings=_MEANINGS.get(short, ()),
        is_open=short in _OPEN,
    )
