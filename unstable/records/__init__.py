"""Records: a run's files, written and read in one place, in a format that they name themselves.

Values of `types` and rows of metrics come in, lines and whole files go out, and the other way
round. What a value means, and which process writes it, never enters.
"""
