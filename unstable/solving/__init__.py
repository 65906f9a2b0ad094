"""Solving: trees of small games, best responses to a policy, and exact exploitability.

Inputs are a game's config and a policy's action probabilities. This package does not import code
that trains or serves policies.
"""
