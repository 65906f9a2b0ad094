"""Commands: a file for each thing that a person asks for, from its config or folder to its result.

Values come in from `cli` or from Python; what is shown and written goes out. Parsing of command
lines, processes and training logic never enter.
"""
