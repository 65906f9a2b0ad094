"""The algorithms, one file per algorithm: advantages of samples and the loss of their tokens.

A batch's columns come in, advantages and losses go out. Forward passes, files and games never
enter.
"""

from typing import Any

from unstable.config import BuiltInConfig, ConfigError, CustomAlgorithmConfig
from unstable.config.plugins import load_target, registered
from unstable.learners.algorithm import Algorithm
from unstable.learners.algorithms.a2c import A2C
from unstable.learners.algorithms.cispo import CISPO
from unstable.learners.algorithms.distill import Distill
from unstable.learners.algorithms.dpo import DPO
from unstable.learners.algorithms.grpo import GRPO
from unstable.learners.algorithms.gspo import GSPO
from unstable.learners.algorithms.kto import KTO
from unstable.learners.algorithms.ppo import PPO
from unstable.learners.algorithms.reinforce import Reinforce
from unstable.learners.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from unstable.learners.algorithms.rft import RFT
from unstable.learners.algorithms.rloo import RLOO
from unstable.learners.algorithms.vrpo import VRPO

BUILT_IN: dict[str, type[Algorithm]] = {
    "reinforce": Reinforce,
    "reinforce++": ReinforcePlusPlus,
    "rloo": RLOO,
    "grpo": GRPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "ppo": PPO,
    "a2c": A2C,
    "vrpo": VRPO,
    "rft": RFT,
    "dpo": DPO,
    "kto": KTO,
    "distill": Distill,
}
"""Built-in algorithms by `learner.algorithm.name`; `contrib/` registers entry points."""


def named_algorithm(name: str) -> type[Algorithm]:
    """Return the algorithm of a `learner.algorithm.name`, of `contrib/` if it is not built in."""
    found: type[Algorithm] = BUILT_IN.get(name) or registered("algorithms")[name].load()
    return found


def algorithm_class(config: BuiltInConfig | CustomAlgorithmConfig) -> type[Algorithm]:
    """Return the class of the config's algorithm.

    Raises `ConfigError` for a user's class that does not exist or that extends an algorithm whose
    settings the config does not have.
    """
    if config.target is None:
        return named_algorithm(config.name)
    known = {name: named_algorithm(name) for name in (*BUILT_IN, *registered("algorithms"))}
    field = f"learner.algorithm.{'target' if config.name in known else 'name'}"
    target: Any = load_target(config.target, field)
    if not isinstance(target, type):
        raise ConfigError(f"{field} = {config.target!r}: not a class; name a class")
    lacking = [name for name in ("advantages", "loss") if not callable(getattr(target, name, None))]
    if lacking:
        raise ConfigError(
            f"{field} = {config.target!r}: method {lacking[0]} is missing; name a class with the "
            "interface of unstable.learners.algorithm.Algorithm"
        )
    ours = {base for algorithm in known.values() for base in algorithm.__mro__}
    extended = next(base for base in target.__mro__ if base in ours)
    fitting = [name for name, algorithm in known.items() if issubclass(algorithm, extended)]
    if config.name not in fitting and len(fitting) < len(known):
        raise ConfigError(
            f"{field} = {config.target!r}: extends {extended.__name__}, whose settings are "
            f"missing; set learner.algorithm.name to {' or '.join(fitting)}, "
            f"learner.algorithm.target to {config.target}"
        )
    if config.old_logprobs == "engine" and not getattr(target, "uses_old_logprobs", True):
        raise ConfigError(
            f"learner.algorithm.old_logprobs = 'engine': no effect in {target.__name__}, which has "
            "no ratio to an old policy; remove it"
        )
    return target
