"""Engines: what serves the model, a folder for each.

Token ids and adapters come in, sampled ids with their log-probabilities go out. Text, games and
rewards never enter.
"""
