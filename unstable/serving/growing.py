"""The text of an answer whose tokens come one by one, up to the first text that ends it."""

from collections.abc import Callable, Sequence

from unstable.prompts.text import UNKNOWN

_WINDOW = 64  # newest ids that are put into words anew with each that comes, or up to twice as many
_LATER = 7  # ids after which it is tried again, where that cannot be


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """A text up to the first of the stops, and whether there is one."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


class Growing:
    """What can be sent of an answer: no half of a character, and nothing that may begin a stop.

    All that `add` returns and then `rest` of the whole answer are that answer, up to its first
    stop.
    """

    def __init__(self, text: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        """`text` puts ids into words."""
        self._text, self._stops = text, stops
        self._held = max(map(len, stops), default=1) - 1
        self._settled = ""  # of ids that came before these
        self._ids: list[int] = []
        self._most = 2 * _WINDOW
        self._sent = 0  # characters
        self.stopped = False
        """Whether there is a stop in the answer so far."""

    def add(self, ids: Sequence[int]) -> str:
        """What can be sent now that the answer has these ids too."""
        self._ids += ids
        tail = self._text(self._ids)
        known = (self._settled + tail).rstrip(UNKNOWN)
        ready, self.stopped = cut_at(known, self._stops)
        if not self.stopped:
            ready = known[: max(0, len(known) - self._held)]
        new = ready[self._sent :]
        self._sent += len(new)
        if len(self._ids) > self._most:
            self._settle(tail)
        return new

    def rest(self, whole: str) -> str:
        """What has not been sent of the whole answer."""
        return whole[self._sent :]

    def _settle(self, tail: str) -> None:
        """Put no more into words again what is settled, where the text of two parts is theirs."""
        end = len(self._ids) - _WINDOW
        begun, left = self._text(self._ids[:end]), self._text(self._ids[end:])
        if begun + left == tail and not begun.endswith(UNKNOWN):
            self._settled += begun
            self._ids = self._ids[end:]
            self._most = 2 * _WINDOW
        else:
            self._most = len(self._ids) + _LATER  # some tokens lose their space where they begin
