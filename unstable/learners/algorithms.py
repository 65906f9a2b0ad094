"""The algorithms by the name that the config has for them."""

from unstable.config import AlgorithmConfig
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


def algorithm_class(config: AlgorithmConfig) -> type[PolicyGradient]:
    """The class of the named algorithm; raises `ConfigError` for a user's own that is not there."""
    if config.name in BUILT_IN:
        return BUILT_IN[config.name]
    target: type[PolicyGradient] = load_target(config.name, "learner.algorithm.name")
    return target
