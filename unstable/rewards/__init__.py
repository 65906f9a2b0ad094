"""Rewards: the terms that the config names, computed from finished games and added up.

A finished game comes in; trajectories with each term's raw and weighted value go out. The learner
computes baselines, normalization and everything else after the sum.
"""

from unstable.rewards.oracles.telling import item

__all__ = ["item"]
