"""Oracles: reward terms that query something other than the game and wait for the answer.

Each kind is a file; `asking.py` batches, caches and retries the questions of all.
"""
