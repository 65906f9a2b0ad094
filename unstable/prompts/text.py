"""Truncation of long texts, and the text of each token.

Texts of games and players are cut, so that none fills memory, files or prompts.
"""

import re
from collections.abc import Callable, Sequence

UNKNOWN = "\ufffd"
"""Replacement for invalid text, also for a token that ends within a character."""
_SURROGATES = re.compile("[\ud800-\udfff]")
MAX_CHARACTERS = 20_000
"""Maximum length of a game's message, an action or an endpoint's reply, in characters."""
MAX_EVENTS = 12_000
"""Maximum length of a game's events in characters, about 3,000 tokens. Beyond it, the oldest
events are omitted until half of the length is left; the last event is always kept."""


def shorten(text: str) -> tuple[str, int]:
    """Return the first `MAX_CHARACTERS` of a text, and the number of characters cut off.

    Surrogates, which files and tokenizers reject, become U+FFFD.
    """
    if text.isascii() and len(text) <= MAX_CHARACTERS:
        return text, 0
    cut = max(len(text) - MAX_CHARACTERS, 0)
    return _SURROGATES.sub(UNKNOWN, text[:MAX_CHARACTERS]), cut


class TokenStrings:
    """Texts of token ids, by a function that decodes several ids at once."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._alone: dict[int, str] = {}

    def text(self, ids: Sequence[int]) -> str:
        """Decode all ids together."""
        return self._decode(list(ids))

    def strings(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each id; joined, they equal the text of all ids.

        A character that spans several tokens belongs to the last of them; the others are empty.
        """
        strings = [self._of(token) for token in ids]
        return strings if "".join(strings) == self.text(ids) else self._in_order(ids)

    def _of(self, token: int) -> str:
        if token not in self._alone:
            self._alone[token] = self.text([token])
        return self._alone[token]

    def _in_order(self, ids: Sequence[int]) -> list[str]:
        """Return what each token adds to the text of the tokens shortly before it."""
        strings: list[str] = []
        begin = end = 0  # span of tokens whose text precedes the next token's
        for count in range(1, len(ids) + 1):
            known, text = self.text(ids[begin:end]), self.text(ids[begin:count])
            if text.endswith(UNKNOWN) and count < len(ids):
                strings.append("")
                continue
            strings.append(text[len(known) :])
            begin, end = end, count
        return strings
