"""Child process that runs an `unstable` command and ends with its parent; also its start script.

`python child.py PARENT CORES -- COMMAND...` binds itself to its parent and to the cores ("0,1"; ""
for all), and becomes the command.
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
    """An `unstable` process with these arguments, in its own session without terminal signals.

    Its output is appended to `log`. When its parent ends for any reason, it gets SIGTERM and exits
    in order.
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
        """Exit code; None while the process runs, negative if a signal killed the process."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal, if it is running."""
        self._process.send_signal(number)


def main(parent: int, cores: str, command: Sequence[str]) -> None:
    """Bind this process to its parent and to the cores, and become the command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent has exited
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore it
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    os.execv(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[4:])
