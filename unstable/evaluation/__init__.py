"""Evaluation: judging a version without touching what is trained.

The games are the same for every version (env seeds, seats, sampling noise), so that two versions
are compared on the same deals.
"""
