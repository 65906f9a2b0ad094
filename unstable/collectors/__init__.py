"""Collectors: playing is slow, parallel and faulty, so it has a room and a fault border of its own.

Specs and adapters come in, finished games or failures go out, tokens as they were sampled. Rewards,
ratings and gradients never enter.
"""
