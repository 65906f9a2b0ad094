"""Child processes that start instantly: forks of a server with all modules loaded."""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.chaos.victim", "tests.helpers.sweep"])
"""One server forks for all tests, so that what any of them needs is named here."""
