"""A sweep: many runs of `unstable train`, from a file of settings and seeds to one table.

Each is a child process and an ordinary run. Progress is read from the runs' own folders, so a
killed sweep resumes without loss of finished runs.
"""
