"""Rewards: what a finished game earned its seats, as terms that the config names and adds up.

A finished game comes in, trajectories with each term's raw and weighted value go out. Baselines,
normalising and all that comes after the sum are the learner's.
"""

from unstable.rewards.oracles.telling import item

__all__ = ["item"]
