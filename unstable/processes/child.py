"""A command of ours as a child process, which ends with its parent. Also the script that begins it.

As `python child.py PARENT CORES -- COMMAND...` it binds itself to its parent and to these cores
(0,1; or none: all), and becomes the command.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PROGRAM = "from unstable.cli import main; main()"


class Child:
    """`unstable` with these words, in a session of its own: no terminal's signal reaches it.

    What it prints is added to `log`. When its parent goes, however that comes, it gets SIGTERM and
    ends in order.
    """

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        cores: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        begin = [sys.executable, "-P", __file__, f"{os.getpid()}", ",".join(map(str, cores)), "--"]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*begin, sys.executable, "-P", "-c", _PROGRAM, *words],
                env=os.environ | dict(variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code once it has ended; below 0 by a signal that nothing was to be done about."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it is there."""
        self._process.send_signal(number)


def main(parent: int, cores: str, command: Sequence[str]) -> None:
    """Become the command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has gone already
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell's background job ignores
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    os.execv(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[4:])
