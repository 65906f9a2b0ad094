"""PettingZoo's games: `games.env: pettingzoo:NAME`, such as `pettingzoo:tictactoe_v3`.

https://pettingzoo.farama.org. NAME is in PettingZoo's registry, without its family, or a
`package.module:function` that constructs a custom env. `parallel_to_aec` makes simultaneous moves
sequential: an agent does not see the choices of others in the same turn. A seat sees only its own
observation, except in games of `_OPEN`, where it sees the env's rendering, which shows everything.
"""

import importlib
import re
from functools import partial
from typing import Any, Self

import pettingzoo
from gymnasium.spaces import Discrete
from pettingzoo.utils.conversions import parallel_to_aec

from unstable.config import ConfigError, nearest
from unstable.config.plugins import described, load_target
from unstable.contrib.environments.numbered import (
    Maker,
    NumberedEnvironment,
    check_actions,
    made_class,
)
from unstable.contrib.environments.readable import MASK
from unstable.games.bridges.named import in_line

_OPEN = {"chess_v6": "both players see the whole board"}
"""Games that seats see by their text rendering, with the reason why that reveals nothing hidden."""
_SMALL = {"tictactoe_v3"}
"""Games of perfect information without chance whose tree is small."""
_ZERO_SUM = {
    *("chess_v6", "connect_four_v3", "go_v5", "leduc_holdem_v4", "rps_v2", "texas_holdem_v4"),
    *("texas_holdem_no_limit_v6", "tictactoe_v3"),
}
_MEANINGS = {
    "leduc_holdem_v4": ("call", "raise", "fold", "check"),
    "rps_v2": ("rock", "paper", "scissors"),
    "texas_holdem_no_limit_v6": (
        *("fold", "check or call", "raise by half the pot", "raise by the pot", "all in"),
    ),
    "texas_holdem_v4": ("call", "raise", "fold", "check"),
}
"""Meanings of actions by number, from PettingZoo's documentation."""
_VERSION = re.compile(r"[-_]v(\d+)$")


class PettingZooEnvironment(NumberedEnvironment):
    """One play of an env from `make`. `environment_class` makes the class of each game."""

    _mover = 0

    def _made(self, args: dict[str, Any]) -> Any:
        made = super()._made(args)
        if isinstance(made, pettingzoo.ParallelEnv):
            made = parallel_to_aec(made)
        name = self.info.name
        if not isinstance(made, pettingzoo.AECEnv):
            raise ConfigError(
                f"games.env = {name!r}: returned {type(made).__name__}; return PettingZoo's AECEnv "
                "or ParallelEnv"
            )
        self._agents: list[Any] = [*made.possible_agents]
        self._totals = [0.0] * len(self._agents)
        check_actions(name, *map(made.action_space, self._agents))
        return made

    @property
    def seats(self) -> int:
        """Number of the env's possible agents, whose order is the order of seats."""
        return len(self._agents)

    @property
    def mover(self) -> int:
        return self._mover

    def _begin(self, seed: int) -> None:
        self.env.reset(seed=seed)
        self._totals = [0.0] * len(self._agents)
        if self._pass_over_the_dead():
            raise ValueError(f"{self.title} ends before any seat moves")

    def _move(self, number: int) -> bool:
        self.env.step(number)
        return self._pass_over_the_dead()

    def _pass_over_the_dead(self) -> bool:
        """Step finished agents with None; returns whether no agent is left.

        Adds the rewards that `last()` reports: an env may clear `rewards` at the end of a step.
        """
        env = self.env
        while env.agents:
            agent = env.agent_selection
            _, reward, terminated, truncated, _ = env.last(observe=False)
            self._totals[self._agents.index(agent)] += float(reward)
            if not (terminated or truncated):
                return False
            env.step(None)
        for agent, reward in env._cumulative_rewards.items():  # of agents not selected again
            self._totals[self._agents.index(agent)] += float(reward)
        return True

    def _look(self) -> tuple[Any, Discrete, Any]:
        agent = self.env.agent_selection
        self._mover = self._agents.index(agent)
        observation = self.env.observe(agent)
        mask = observation.get(MASK) if isinstance(observation, dict) else None
        if mask is None:
            mask = self.env.infos.get(agent, {}).get(MASK)
        return observation, self.env.action_space(agent), mask

    def whole_state(self) -> str:
        """Return the position, or each living agent's observation and the moves of others since
        the mover's last one, which may be in no observation yet."""
        if self.info.small_tree is not None or (self.is_open and self.has_games_text):
            return super().whole_state()
        views = (
            in_line(self._text(self.env.observe(agent), self._agents.index(agent)))
            for agent in self.env.agents
        )
        return " / ".join([*views, *map(str, self._moves[1 - self.seats or len(self._moves) :])])

    def payoffs(self) -> list[float]:
        """Return the sum of each agent's rewards."""
        return [*self._totals]

    def copied(self) -> Self:
        made = super().copied()
        made._totals = [*self._totals]
        return made


def environment_class(name: str) -> type[PettingZooEnvironment]:
    """Return the class of a game; raises `ConfigError` if it or a dependency is missing."""
    place = f"target = {f'pettingzoo:{name}'!r}"
    return made_class(
        PettingZooEnvironment,
        name,
        name,
        load_target(name) if ":" in name else _registered(name, place),
        meanings=_MEANINGS.get(name, ()),
        is_open=name in _OPEN,
        is_zero_sum=name in _ZERO_SUM,
        is_small=name in _SMALL,
    )


def _registered(name: str, place: str) -> Maker:
    """Return the maker of a game in PettingZoo's registry: tictactoe_v3 is classic/tictactoe-v3."""
    ids = {_VERSION.sub(r"_v\1", full.rpartition("/")[2]): full for full in pettingzoo.aec_registry}
    if name not in ids:
        raise ConfigError(f"{place}: unknown PettingZoo game; {nearest(name, [*ids])}")
    entry = pettingzoo.aec_registry[ids[name]].entry_point
    try:
        importlib.import_module(str(entry).partition(":")[0])
    except ImportError as error:
        needs = error.name or described(error)
        raise ConfigError(f"{place}: {needs} is not installed; install it") from None
    return partial(pettingzoo.make, "aec", ids[name])
