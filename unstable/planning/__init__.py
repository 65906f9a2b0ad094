"""Planning: what this machine has, what a config needs of it, and so which process runs where.

A config and a machine come in, both plain values; a plan and a config without "auto" go out.
Nothing is loaded or started.
"""
