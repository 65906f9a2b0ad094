"""VRPO: PPO's clipped ratios, with advantages from a critic Q(s, a) of the legal moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235.
"""

from unstable.config import VRPOConfig
from unstable.learners.clipped import Surrogate


class VRPO(Surrogate):
    """Clipped policy gradients over all legal moves, or of the sampled ones.

    The advantages are the critic's (`learners/action_critic.py`).
    """

    config: VRPOConfig

    @property
    def whole_in_step(self) -> bool:
        """True over all moves: a step holds all moves of a prompt, which share its tokens."""
        return self.config.critic.gradient == "all" or super().whole_in_step
