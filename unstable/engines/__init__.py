"""Engines that serve the model, one folder per engine.

Token ids and adapters come in; sampled ids with their log-probabilities go out. Engines never see
text, games or rewards.
"""
