"""Environments of other libraries, by the entry points `unstable.environments`.

Each entry point maps a name after its prefix to a subclass of `Environment`.
"""
