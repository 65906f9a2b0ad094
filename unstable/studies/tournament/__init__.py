"""Tournaments of players of any kind: entrants, pairings, games and results.

A tournament keeps games and results in its own folder, from which it resumes.
"""
