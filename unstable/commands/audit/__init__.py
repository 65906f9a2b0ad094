"""Audit: a recorded game is played again, and what it says is held against what comes out.

A run's folder and a game come in, agreement or the differences go out.
"""
