"""The algorithms by the name that the config has for them."""

from typing import Any

from unstable.config import BuiltInConfig, ConfigError, CustomAlgorithmConfig
from unstable.learners.a2c import A2C
from unstable.learners.cispo import CISPO
from unstable.learners.grpo import GRPO
from unstable.learners.gspo import GSPO
from unstable.learners.policy_gradient import PolicyGradient
from unstable.learners.ppo import PPO
from unstable.learners.reinforce import Reinforce
from unstable.learners.reinforce_plus_plus import ReinforcePlusPlus
from unstable.learners.rft import RFT
from unstable.learners.rloo import RLOO
from unstable.targets import load_target

BUILT_IN: dict[str, type[PolicyGradient]] = {
    "reinforce": Reinforce,
    "reinforce++": ReinforcePlusPlus,
    "rloo": RLOO,
    "grpo": GRPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "ppo": PPO,
    "a2c": A2C,
    "rft": RFT,
}


def algorithm_class(config: BuiltInConfig | CustomAlgorithmConfig) -> type[PolicyGradient]:
    """The class that does what the config says, with this config.

    Raises `ConfigError` for a user's own that is not there or extends an algorithm whose settings
    the config does not have.
    """
    if config.target is None:
        return BUILT_IN[config.name]
    field = f"learner.algorithm.{'target' if config.name in BUILT_IN else 'name'}"
    target: Any = load_target(config.target, field)
    if not isinstance(target, type):
        raise ConfigError(f"{field} = {config.target!r} is no class; name one")
    ours = {base for built_in in BUILT_IN.values() for base in built_in.__mro__}
    extended = next(base for base in target.__mro__ if base in ours)
    fitting = [name for name, built_in in BUILT_IN.items() if issubclass(built_in, extended)]
    if config.name not in fitting and len(fitting) < len(BUILT_IN):
        raise ConfigError(
            f"{field} = {config.target!r} extends {extended.__name__} and needs its settings; set "
            f"learner.algorithm.name to {' or '.join(fitting)}, learner.algorithm.target to "
            f"{config.target}"
        )
    return target
