"""Text between files, games and tokens: cut where it is too long, and shown token by token.

Texts of games and players are cut, so that none fills memory, files or prompts.
"""

import re
from collections.abc import Callable, Sequence

UNKNOWN = "\ufffd"
"""Stands for what is no text, also where a token ends within a character."""
_SURROGATES = re.compile("[\ud800-\udfff]")
MAX_CHARACTERS = 20_000
"""The most of what a game says at once, of an action, of an endpoint's reply."""
MAX_EVENTS = 12_000
"""Characters of what happened in a game, about 3,000 tokens: of more, the oldest events are left
out, half of them at once; the last is kept."""


def shorten(text: str) -> tuple[str, int]:
    """The text's first `MAX_CHARACTERS`, and how many characters came after them.

    Surrogates, which no file and no tokenizer takes, become U+FFFD.
    """
    if text.isascii() and len(text) <= MAX_CHARACTERS:
        return text, 0
    cut = max(len(text) - MAX_CHARACTERS, 0)
    return _SURROGATES.sub(UNKNOWN, text[:MAX_CHARACTERS]), cut


class TokenStrings:
    """Ids as text, by what makes text of several at once."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._alone: dict[int, str] = {}

    def text(self, ids: Sequence[int]) -> str:
        """The text of all."""
        return self._decode(list(ids))

    def strings(self, ids: Sequence[int]) -> list[str]:
        """The text of each, so that together they are the text of all.

        A character that several tokens make is the last one's; the others are then empty.
        """
        strings = [self._of(token) for token in ids]
        return strings if "".join(strings) == self.text(ids) else self._in_order(ids)

    def _of(self, token: int) -> str:
        if token not in self._alone:
            self._alone[token] = self.text([token])
        return self._alone[token]

    def _in_order(self, ids: Sequence[int]) -> list[str]:
        """What each token adds to the text of those shortly before it."""
        strings: list[str] = []
        begin = end = 0  # of the tokens whose text is known and stands before the next one's
        for count in range(1, len(ids) + 1):
            known, text = self.text(ids[begin:end]), self.text(ids[begin:count])
            if text.endswith(UNKNOWN) and count < len(ids):
                strings.append("")
                continue
            strings.append(text[len(known) :])
            begin, end = end, count
        return strings
