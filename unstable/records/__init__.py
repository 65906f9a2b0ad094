"""Records: a run's files, written and read in one place, in a format that they name themselves.

Values of `types` and rows of metrics come in, lines and whole files go out, and vice versa. The
meaning of a value, and the process that writes it, never enter.
"""
