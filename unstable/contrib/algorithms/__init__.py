"""Algorithms that have not beaten the baseline yet, by the entry points `unstable.algorithms`.

Each is a class as in `learners/algorithm.py`; its settings are a section of the config.
"""
