"""Usage of an endpoint, counted in a file that all processes share."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from unstable.config import FORMAT, OpenAIOpponent
from unstable.types import SpentError


class Spent(NamedTuple):
    """Number of calls, and tokens of prompts and answers together."""

    calls: int
    tokens: int


class Ledger:
    """Calls and tokens of an opponent, limited by its `max_calls` and `max_total_tokens`.

    Each call first reserves the most tokens that it can take; its reply replaces them by the actual
    number. So concurrent callers never exceed a cap, and a call without a reply counts at its
    maximum.
    """

    def __init__(self, opponent: OpenAIOpponent) -> None:
        assert opponent.ledger is not None, "planning resolves the ledger's path"
        self._opponent = opponent
        self._path = Path(opponent.ledger).expanduser()
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def spent(self) -> Spent:
        """Return the usage so far; `ValueError` if the file has other content."""
        with self._open() as file:
            return _read(file)

    def reserve(self, tokens: int) -> None:
        """Count a call of at most `tokens` tokens; raises `SpentError` if a cap forbids it."""
        with self._open() as file:
            spent = _read(file)
            after = Spent(spent.calls + 1, spent.tokens + tokens)
            for name, cap, wanted in (
                ("max_calls", self._opponent.max_calls, after.calls),
                ("max_total_tokens", self._opponent.max_total_tokens, after.tokens),
            ):
                if cap is not None and wanted > cap:
                    raise SpentError(
                        self._opponent.key,
                        f"{name} = {cap} of opponent {self._opponent.key!r} exhausted after "
                        f"{spent.calls} calls and {spent.tokens} tokens ({self._path.name}); the "
                        f"run drops this opponent; raise {name} and resume the run",
                    )
            _write(file, after)

    def settle(self, reserved: int, tokens: int) -> None:
        """Replace the tokens reserved for a call by the tokens of its reply."""
        with self._open() as file:
            spent = _read(file)
            _write(file, Spent(spent.calls, spent.tokens - reserved + tokens))

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Open the file under an exclusive lock."""
        with FileLock(self._path.with_name(f".{self._path.name}.lock")):
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                yield file
            finally:
                os.close(file)


def _read(file: int) -> Spent:
    text = os.pread(file, 200, 0)
    if not text:
        return Spent(0, 0)
    row = json.loads(text)
    if not isinstance(row, dict) or not {"calls", "tokens"} <= row.keys():
        raise ValueError("calls or tokens missing")
    return Spent(row["calls"], row["tokens"])


def _write(file: int, spent: Spent) -> None:
    text = json.dumps({"format": FORMAT, **spent._asdict()}).ljust(100)  # fixed length
    os.pwrite(file, f"{text}\n".encode(), 0)
