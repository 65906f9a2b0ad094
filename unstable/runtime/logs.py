"""Logs: one file for each component, so that what went wrong is found where it happened.

Nothing is logged to the terminal: what a person should know there, the tracker or the CLI prints.
"""

import logging

from unstable.config import escape_control
from unstable.records.folder import RunFolder

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class Escaping(logging.Formatter):
    """Writes control characters out, so that nothing in a log moves a cursor."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines."""
        return escape_control(super().format(record))


def _is_ours_or_matters(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] == "unstable"


def setup_logging(folder: RunFolder, component: str) -> None:
    """Log this process, libraries' warnings included, to `logs/<component>.log`; call it once."""
    # They bring handlers that write to the terminal as they are imported, so they come first.
    import torch  # noqa: F401
    import transformers.utils.logging as transformers_logging

    path = folder.log(component)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(Escaping(FORMAT))
    handler.addFilter(_is_ours_or_matters)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    transformers_logging.disable_default_handler()
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.getLogger("unstable").setLevel(logging.INFO)
