"""Solving: small games as trees, best responses to a policy, and how exploitable it is.

A game's config and a policy's action probabilities come in, exact values go out. What trains or
serves the policy never enters.
"""
