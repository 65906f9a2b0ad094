"""VRPO: PPO's clipped ratios with the advantages of a critic of moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235: an advantage is a move's value less the mean
over the policy's moves, so that neither this move's chance nor that of the seat's later ones is in
it. Their critic sees all hands; ours reads what the seat is shown, as it is part of its model.
"""

from unstable.config import VRPOConfig
from unstable.learners.clipped import Surrogate


class VRPO(Surrogate):
    """Q(o, a) for each legal move, and the policy's exact probability of it."""

    config: VRPOConfig
