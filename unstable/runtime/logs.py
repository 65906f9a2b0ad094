"""Logs: one file for each component, so that what went wrong is found where it happened.

Nothing is logged to the terminal: what a person should know there, the tracker or the CLI prints.
"""

import contextlib
import logging
from collections.abc import Iterator

from unstable.config import escape_control
from unstable.records.folder import RunFolder

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_takes_over = False


def take_over() -> None:
    """From now on this process is ours, as the CLI's is: `logging_to` has libraries log there."""
    global _takes_over
    _takes_over = True


@contextlib.contextmanager
def logging_to(folder: RunFolder, component: str) -> Iterator[None]:
    """Log this package to `logs/<component>.log` meanwhile.

    What a caller has set up stays as it is, unless the process is ours.
    """
    if _takes_over:
        setup_logging(folder, component)
        yield
        return
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
    """Writes control characters out, so that nothing in a log moves a cursor."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines."""
        return escape_control(super().format(record))


def setup_logging(folder: RunFolder, component: str) -> None:
    """Log a process of our own, libraries' warnings included, to `logs/<component>.log`; once."""
    # They bring handlers that write to the terminal as they are imported, so they come first.
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
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(Escaping(FORMAT))
    return handler


def _is_ours_or_matters(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] == "unstable"
