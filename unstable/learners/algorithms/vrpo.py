"""VRPO: PPO's clipped ratios, with the advantages of a critic Q(s, a) for all legal moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235.
"""

from unstable.config import VRPOConfig
from unstable.learners.clipped import Surrogate


class VRPO(Surrogate):
    """Clipped policy gradients over all legal moves, or of the sampled ones.

    The critic (`learners/action_critic.py`) computes the advantages.
    """

    config: VRPOConfig

    @property
    def whole_in_step(self) -> bool:
        """True over all moves: those of a prompt, which share its tokens, stay together."""
        return self.config.critic.gradient == "all" or super().whole_in_step
