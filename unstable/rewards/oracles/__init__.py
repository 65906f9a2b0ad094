"""Oracles: reward terms that ask something else than the game and wait for the answer.

What each asks is a file; how all are asked, batched, cached, again and to what end is `asking.py`.
"""
