"""What a learner was asked for since its last version was on file, to be asked once more."""

from typing import Any

CHANGES = {"update", "imitate", "restore", "scale_rate", "hold"}
"""Methods of a learner that make it another one, or that another call needs."""


class Journal:
    """Calls in their order; `version` is the one that they begin from, None the start.

    It keeps what it is told only where a learner `may_restart`: batches are large.
    """

    def __init__(self, *, may_restart: bool) -> None:
        self._keeps = may_restart
        self.version: int | None = None
        self.since: list[tuple[str, tuple[Any, ...]]] = []

    def add(self, method: str, *arguments: object) -> None:
        """A call that was answered."""
        if self._keeps and method in CHANGES:
            self.since.append((method, arguments))

    def saved(self, version: int) -> None:
        """A version that was held is on file: what led to it is not needed any more."""
        if not self._keeps:
            return
        place = self.since.index(("hold", (version,)))
        self.version, self.since = version, self.since[place + 1 :]

    def loaded(self, version: int) -> None:
        """The learner is what a checkpoint says."""
        self.version, self.since = version, []
