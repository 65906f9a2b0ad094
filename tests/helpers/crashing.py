"""Bots and an env that end or stop their process in the middle of a game."""

import faulthandler
import os
import signal
import time
import tty
from pathlib import Path
from typing import Any

from textarena.envs.TicTacToe.env import TicTacToeEnv

ARMED = Path("armed")
"""While this file is there the env crashes: it has passed its checks by then."""


def exits(observation: str) -> str:
    os._exit(3)


def crashes(observation: str) -> str:
    faulthandler.disable()  # whose words pytest would show
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)
    return "[0]"


def blocks(observation: str) -> str:
    """Nothing but a kill ends this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    while True:
        time.sleep(60)


def closes(observation: str) -> str:
    """All that a process has open."""
    os.closerange(0, 4096)
    return "[0]"


def breaks_terminal(observation: str) -> str:
    tty.setraw(0)
    os.set_blocking(0, False)
    os._exit(3)


def arms(observation: str) -> str:
    ARMED.touch()
    return "[0]"


class Crashing(TicTacToeEnv):
    """TicTacToe whose `step` ends the process, or raises, as the file says."""

    def step(self, action: str) -> tuple[bool, Any]:
        if ARMED.exists():
            os._exit(5)
        done, info = super().step(action)
        return done, info
