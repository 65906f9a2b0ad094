"""A sweep: many runs of `unstable train`, from a file of settings and seeds to one table.

Each run is a child process and a run like any other. What is done and what is left is read from
the runs' own folders, so that a sweep that was killed goes on as if it had not been.
"""
