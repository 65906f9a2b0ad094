"""GEM's games of one seat, whose actions are text: `games.env: gem:game:GuessTheNumber-v0-easy`.

https://github.com/axon-rl/gem. `gem.make` takes the id. The first observation is the rules, later
ones are events. Answers are wrapped in `\\boxed{...}`, the form that GEM's games take. The games
define the penalty for a malformed answer: this env does not refuse any.
"""

from typing import Any

import gem
from gem.envs.registration import ENV_REGISTRY

from unstable.config import ConfigError, nearest
from unstable.config.plugins import load_target
from unstable.games.environment import Environment, EnvStep
from unstable.games.info import GameInfo, Payoffs
from unstable.games.words import offline
from unstable.types import Observation

_BOX = r"\boxed"
_END = "TERMINAL_STATE"  # marks observations after the end of a game


class GemEnvironment(Environment):
    """One play of the game `id`. `environment_class` makes the class of each game.

    `text` names a function(env, seat, observation) that returns what the seat sees, from GEM's env;
    `rules` replaces the first observation. GEM's env receives all other arguments.
    """

    id: str
    lists_moves = False
    action_form = "bare"
    mover = 0

    def __init__(self, text: str | None = None, rules: str = "", **args: Any) -> None:
        self._seen = None if text is None else load_target(text, "games.args.text")
        if not isinstance(rules, str):
            raise TypeError(f"rules = {rules!r} is not a string")
        self._own_rules = rules
        with offline():
            self.env: Any = gem.make(self.id, **args)
        """GEM's env."""
        self._rules = rules
        self._events: list[str] = []
        self._total = 0.0

    def reset(self, seats: int, seed: int) -> None:
        """Start a game by GEM's own seed, which also seeds `random`."""
        assert seats == 1, f"{self.id} of GEM has 1 seat"
        with offline():
            first, _ = self.env.reset(seed=seed % 2**31)
        self._rules = self._own_rules or self._text(first)
        self._events, self._total = [], 0.0

    def _text(self, observation: Any) -> str:
        seen = observation if self._seen is None else self._seen(self.env, 0, observation)
        return str(seen).strip()

    def observe(self) -> Observation:
        """Return the rules, and the answers and observations so far as events."""
        return Observation(seat=0, rules=self._rules, events=[*self._events], board="", notice="")

    def legal_moves(self) -> list[str]:
        """Raise `ValueError`: GEM does not list legal moves."""
        raise ValueError(f"{self.id} of GEM does not list its legal moves")

    def step(self, action: str) -> EnvStep:
        """Pass an answer to the game."""
        boxed = action if _BOX in action else f"{_BOX}{{{action.strip()}}}"
        seen, reward, terminated, truncated, _ = self.env.step(boxed)
        self._total += float(reward)
        said = "" if _END in str(seen) else self._text(seen)
        self._events += [f"You: {action.strip()}", *([said] if said else [])]
        over = bool(terminated or truncated)
        return EnvStep(over=over, refused=False, reason=said if over else "")

    def payoffs(self) -> list[float]:
        """Return the sum of the rewards."""
        return [self._total]

    @property
    def board(self) -> str:
        """Empty: all observations are events."""
        return ""


def environment_class(name: str) -> type[GemEnvironment]:
    """Return the class of a game; raises `ConfigError` if it does not exist."""
    if name not in ENV_REGISTRY:
        hint = nearest(name, [*ENV_REGISTRY])
        raise ConfigError(f"target = {f'gem:{name}'!r}: unknown GEM game; {hint}")
    payoffs = Payoffs(lambda env: env.payoffs(), lambda env: 1.0, zero_sum=False)
    info = GameInfo(name=f"gem:{name}", payoffs=payoffs)
    own = {"id": name, "info": info, "__doc__": f"One play of {name}."}
    return type("Gem", (GemEnvironment,), own)
