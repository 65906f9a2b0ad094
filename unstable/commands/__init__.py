"""Commands: one file per user command, from its config or folder to its result.

Values come in from `cli` or from Python; terminal output and files go out. Parsing of command
lines, processes and training logic never enter.
"""
