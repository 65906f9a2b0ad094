"""Logs: one file for each component, so that what went wrong is found where it happened.

Nothing is logged to the terminal: what a person should know there, the tracker or the CLI says.
"""

import logging

from unstable.folder import RunFolder

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _SilentLogger(logging.Logger):
    """Passes everything on to the root, and takes no handler that writes to the terminal.

    Libraries bring such handlers when they are imported, which may be before or after our set-up.
    """

    def addHandler(self, hdlr: logging.Handler) -> None:  # noqa: N802
        """Takes handlers that write to files."""
        if isinstance(hdlr, logging.FileHandler):
            super().addHandler(hdlr)

    @property
    def propagate(self) -> bool:
        return True

    @propagate.setter
    def propagate(self, value: bool) -> None:
        """Stays True."""


def _is_ours_or_matters(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] == "unstable"


def setup_logging(folder: RunFolder, component: str) -> None:
    """Logs this process, libraries' warnings included, to `logs/<component>.log`; call it once."""
    path = folder.log(component)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(_is_ours_or_matters)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.setLoggerClass(_SilentLogger)
    for logger in logging.root.manager.loggerDict.values():
        if type(logger) is logging.Logger:
            logger.handlers.clear()
            logger.__class__ = _SilentLogger
    logging.getLogger("unstable").setLevel(logging.INFO)
