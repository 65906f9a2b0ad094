"""Ends what a killed run leaves behind. Run as `python reaper.py NAME=VALUE`, apart from the run.

It waits until its input ends, which is when the run's process has gone, and then kills every
process that was started with that variable in its environment, and all that these have started.
"""

import contextlib
import select
import sys
import time

import psutil

LOOK_S = 2.0
PAUSE_S, TRIES = 0.2, 50


def main(mark: str) -> None:
    """Wait, then kill, more than once: what is being started just then comes late."""
    known = family(mark)
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        # Ray's agents lose the mark as they rename themselves, and their parent may go before them:
        # a process that was found once is remembered.
        known = running(known | family(mark))
    for _ in range(TRIES):
        known = running(known | family(mark))
        for process in known:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(PAUSE_S)


def family(mark: str) -> set[psutil.Process]:
    """The processes that carry the mark, and all that they have started."""
    name, _, value = mark.partition("=")
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found |= {process, *process.children(recursive=True)}
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            continue
    return found


def running(processes: set[psutil.Process]) -> set[psutil.Process]:
    """Those that have not ended; what is dead and not collected yet has."""
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
