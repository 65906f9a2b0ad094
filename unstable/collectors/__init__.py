"""Collectors play games: slow, parallel work, whose failures stay within this package.

Specs and adapters come in; finished games or failures go out, with tokens unchanged since sampling.
Collectors never see rewards, ratings or gradients.
"""
