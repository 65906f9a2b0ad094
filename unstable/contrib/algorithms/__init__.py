"""Algorithms without a result that beats the baseline, by the entry points `unstable.algorithms`.

Each is a class of `learners/algorithm.py`; its settings are a section of the config like any other.
"""
