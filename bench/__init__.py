"""Measurements, each a script of its own: `python -m bench.NAME` from the repository's root."""
