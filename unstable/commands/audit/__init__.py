"""Audit: a recorded game is played again, and the result is compared with the record.

A run's folder and a game come in, agreement or the differences go out.
"""
