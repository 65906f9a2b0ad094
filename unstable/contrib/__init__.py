"""Optional extras: environments of other libraries, rule bots, further algorithms, trackers.

The core finds each by an entry point of `pyproject.toml`, like the entry points of other packages,
and never imports this room. An algorithm moves into the core once it beats the baseline over three
seeds (CONTRIBUTING.md).
"""
