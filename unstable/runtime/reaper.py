"""Reaper of what a killed run leaves behind: `python reaper.py NAME=VALUE`, apart from the run.

It waits until its standard input ends, which means that the run's process is gone, and then kills
every process that was started with this environment variable, and all descendants.
"""

import contextlib
import select
import sys
import time

import psutil

LOOK_S = 2.0
PAUSE_S, TRIES = 0.2, 50


def main(mark: str) -> None:
    """Wait for the end of the input, then kill repeatedly, since processes may still start."""
    known = family(mark)
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        # Ray's agents lose the mark when they rename themselves, and their parent may end before
        # them: keep processes that were found once.
        known = running(known | family(mark))
    for _ in range(TRIES):
        known = running(known | family(mark))
        for process in known:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(PAUSE_S)


def family(mark: str) -> set[psutil.Process]:
    """Return the processes that carry the mark, and all their descendants."""
    name, _, value = mark.partition("=")
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found |= {process, *process.children(recursive=True)}
        except (psutil.Error, OSError):  # ended meanwhile, or another user's
            continue
    return found


def running(processes: set[psutil.Process]) -> set[psutil.Process]:
    """Return the processes that have not ended; a zombie has ended."""
    found: set[psutil.Process] = set()
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
        except psutil.NoSuchProcess:
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1])
