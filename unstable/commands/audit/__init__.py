"""Audit: plays a recorded game again and compares the result with the record.

A run's folder and a game come in; agreement or the differences go out.
"""
