"""Tokens as text, one by one, for people: what each of them adds."""

from collections.abc import Callable, Sequence

_HALF = "\ufffd"  # stands where a token ends within a character


class TokenTexts:
    """Ids as text, by what makes text of several at once."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._alone: dict[int, str] = {}

    def text(self, ids: Sequence[int]) -> str:
        """The text of all."""
        return self._decode(list(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each, so that together they are the text of all.

        A character that several tokens make is the last one's; the others are then empty.
        """
        pieces = [self._of(token) for token in ids]
        return pieces if "".join(pieces) == self.text(ids) else self._in_order(ids)

    def _of(self, token: int) -> str:
        if token not in self._alone:
            self._alone[token] = self.text([token])
        return self._alone[token]

    def _in_order(self, ids: Sequence[int]) -> list[str]:
        """By what each token adds to the text of those shortly before it."""
        pieces: list[str] = []
        begin = end = 0  # of the tokens whose text is known and stands before the next one's
        for count in range(1, len(ids) + 1):
            known, text = self.text(ids[begin:end]), self.text(ids[begin:count])
            if text.endswith(_HALF) and count < len(ids):
                pieces.append("")
                continue
            pieces.append(text[len(known) :])
            begin, end = end, count
        return pieces
