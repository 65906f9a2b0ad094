"""Extras that a run does without: environments of other libraries, rule bots, further methods.

The core finds each by an entry point of `pyproject.toml`, as it finds those of other packages, and
never imports this room. CONTRIBUTING.md says what may come in, and what may move into the core.
"""
