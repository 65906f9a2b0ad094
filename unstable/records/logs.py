"""Logs: one file per component, so that an error is found where it happened.

Nothing is logged to the terminal: the tracker or the CLI prints what a person must know. A full
file becomes `<component>.log.1`, and the previous one `.2`; older files are deleted.
"""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from logging.handlers import RotatingFileHandler
from typing import Any

from unstable.config import escape_control
from unstable.records.folder import RunFolder

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
LOG_BYTES = 20_000_000
OLDER_FILES = 2
NOISE = ("torchao", "torch.utils._pytree")
"""Loggers whose warnings during torchao's import concern other torch versions."""
_takes_over = False


def take_over() -> None:
    """Mark this process as the package's own, as the CLI's is: libraries then log to its files.

    Uncaught errors are then printed without control characters and secrets.
    """
    global _takes_over
    _takes_over = True
    sys.excepthook = _show_error
    for name in NOISE:  # they warn before the log exists
        logging.getLogger(name).setLevel(logging.ERROR)


def _show_error(*error: Any) -> None:
    print(escape_control("".join(traceback.format_exception(*error))), end="", file=sys.stderr)


@contextlib.contextmanager
def logging_to(folder: RunFolder, component: str) -> Iterator[None]:
    """Log this package to `logs/<component>.log` during the block.

    The caller's logging setup is kept, unless `take_over` was called.
    """
    if _takes_over:
        setup_logging(folder, component)
        yield
        return
    with logging_ours(folder, component):
        yield


@contextlib.contextmanager
def logging_ours(folder: RunFolder, component: str) -> Iterator[None]:
    """Log this package to `logs/<component>.log` during the block, without loading any library."""
    ours = logging.getLogger("unstable")
    handler, before = _handler(folder, component), (ours.level, ours.propagate)
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    ours.propagate = False
    try:
        yield
    finally:
        ours.level, ours.propagate = before
        ours.removeHandler(handler)
        handler.close()


class Escaping(logging.Formatter):
    """Formatter that escapes control characters, so that nothing in a log moves a cursor."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_control(super().format(record))


class LogFile(RotatingFileHandler):
    """Log of at most `LOG_BYTES`, and its older files.

    A full disk, or a missing folder, causes no output on the terminal.
    """

    def doRollover(self) -> None:
        """Begin a new file, or continue in the one that another process has begun.

        An evaluation that is concurrent with its run logs to these files too.
        """
        assert self.stream is not None, "shouldRollover has opened it"
        if os.path.samestat(os.fstat(self.stream.fileno()), os.stat(self.baseFilename)):
            super().doRollover()
        else:
            full, self.stream = self.stream, self._open()
            full.close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record if the file cannot be written; other errors are reported as bugs."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def setup_logging(folder: RunFolder, component: str) -> None:
    """Log a process of this package, with libraries' warnings, to `logs/<component>.log`; once."""
    # Importing them installs handlers that write to the terminal, so they come first.
    import torch  # noqa: F401
    import transformers.utils.logging as transformers_logging

    handler = _handler(folder, component)
    handler.addFilter(_is_ours_or_matters)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    transformers_logging.disable_default_handler()
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.getLogger("unstable").setLevel(logging.INFO)


def _handler(folder: RunFolder, component: str) -> logging.Handler:
    path = folder.log(component)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = LogFile(path, maxBytes=LOG_BYTES, backupCount=OLDER_FILES, encoding="utf-8")
    handler.setFormatter(Escaping(FORMAT))
    return handler


def _is_ours_or_matters(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] == "unstable"
