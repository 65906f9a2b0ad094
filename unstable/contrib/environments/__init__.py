"""Environments of other libraries, by the entry points `unstable.environments`.

A name after the prefix comes in, a class of `Environment` goes out. No config or model enters.
"""
