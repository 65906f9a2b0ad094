"""Extras that a run does without: environments of other libraries, rule bots, further algorithms.

The core finds each by an entry point of `pyproject.toml`, as it finds those of other packages, and
never imports this room. An algorithm moves into the core once a figure over three seeds beats the
baseline (CONTRIBUTING.md).
"""
