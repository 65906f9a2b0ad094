"""GEM's games of one seat, whose actions are text: `games.env: gem:game:GuessTheNumber-v0-easy`.

https://github.com/axon-rl/gem. The id is what `gem.make` takes. What the game says first are the
rules, all after it events. An answer is put in `\\boxed{...}`, as its games take them. What a wrong
form of answer costs is the game's own rule: nothing is refused here.
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
_END = "TERMINAL_STATE"  # in what is shown where there is nothing more to be seen


class GemEnvironment(Environment):
    """One play of the game of that `id`. `environment_class` makes the class of each game.

    `text` names a function(env, seat, observation) that says what the seat sees, with GEM's own
    env; `rules` takes the place of what the game says first. All other arguments are that env's.
    """

    id: str
    lists_moves = False
    action_form = "bare"
    mover = 0

    def __init__(self, text: str | None = None, rules: str = "", **args: Any) -> None:
        self._seen = None if text is None else load_target(text, "games.args.text")
        if not isinstance(rules, str):
            raise TypeError(f"rules = {rules!r} is no text")
        self._own_rules = rules
        with offline():
            self.env: Any = gem.make(self.id, **args)
        """GEM's own."""
        self._rules = rules
        self._events: list[str] = []
        self._total = 0.0

    def reset(self, seats: int, seed: int) -> None:
        """Begin, by GEM's own seed, which is that of `random` too."""
        assert seats == 1, f"{self.id} of GEM has 1 seat"
        with offline():
            first, _ = self.env.reset(seed=seed % 2**31)
        self._rules = self._own_rules or self._text(first)
        self._events, self._total = [], 0.0

    def _text(self, observation: Any) -> str:
        seen = observation if self._seen is None else self._seen(self.env, 0, observation)
        return str(seen).strip()

    def observe(self) -> Observation:
        """The rules, and what was answered and said since."""
        return Observation(seat=0, rules=self._rules, events=[*self._events], board="", notice="")

    def legal_moves(self) -> list[str]:
        """Raises `ValueError`: GEM lists none."""
        raise ValueError(f"{self.id} of GEM does not list its legal moves")

    def step(self, action: str) -> EnvStep:
        """Give the game an answer."""
        boxed = action if _BOX in action else f"{_BOX}{{{action.strip()}}}"
        seen, reward, terminated, truncated, _ = self.env.step(boxed)
        self._total += float(reward)
        said = "" if _END in str(seen) else self._text(seen)
        self._events += [f"You: {action.strip()}", *([said] if said else [])]
        over = bool(terminated or truncated)
        return EnvStep(over=over, refused=False, reason=said if over else "")

    def payoffs(self) -> list[float]:
        """The sum of the rewards."""
        return [self._total]

    @property
    def board(self) -> str:
        """There is none: all is said by events."""
        return ""


def environment_class(name: str) -> type[GemEnvironment]:
    """The class of a game; raises `ConfigError` where there is none."""
    if name not in ENV_REGISTRY:
        hint = nearest(name, [*ENV_REGISTRY])
        raise ConfigError(f"target = {f'gem:{name}'!r}: GEM has no such game; {hint}")
    payoffs = Payoffs(lambda env: env.payoffs(), lambda env: 1.0, zero_sum=False)
    info = GameInfo(name=f"gem:{name}", payoffs=payoffs)
    own = {"id": name, "info": info, "__doc__": f"One play of {name}."}
    return type("Gem", (GemEnvironment,), own)
