"""Text to ids and back. Text is never control: no id made of it is one of the added tokens.

The chat template writes those (<|im_end|>, <think>), and there they are read as what they are. In a
text each is broken in two, and its halves are encoded separately. Any other text is encoded as it
is. Texts of games and players are cut, so that none fills memory, files or prompts.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

_BREAK = "\ufdd0"  # its two sides are encoded separately; Unicode keeps it out of all text
_UNKNOWN = "\ufffd"  # also where a token ends within a character
_SURROGATES = re.compile("[\ud800-\udfff]")
MAX_CHARACTERS = 20_000
"""Of what a game says at once, of an action, of an endpoint's reply."""
MAX_EVENTS = 12_000
"""Characters of what happened in a game, about 3,000 tokens: of more, the oldest events are left
out; the last is kept."""

Render = Callable[[Sequence[str]], str]
"""Puts texts where a template has them."""


class TextEncoder:
    """Encodes texts within a template, whatever the texts hold.

    Added tokens that are white space mark nothing, and stay what they are in a text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {
            index: token
            for index, token in tokenizer.added_tokens_decoder.items()
            if _is_control(token, tokenizer.unk_token)
        }
        self._control_ids = {token.content: index for index, token in added.items()}
        # Raw text is searched for all others, and cannot hold what it does not spell.
        self._normalizes = any(token.normalized for token in added.values())
        names = sorted(self._control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._longest = max(map(len, names), default=0)
        self._heads = {name[:end] for name in names for end in range(1, len(name))}
        self._tails = {name[start:] for name in names for start in range(1, len(name))}

    def encode(
        self,
        texts: Sequence[str],
        render: Render = "".join,
        encode: Callable[[str], list[int]] | None = None,
    ) -> list[int]:
        """Ids of `render(texts)`, in which the template alone has control tokens.

        `encode` may take the place of `ids`. Raises `ValueError` where the tokenizer's normalizer
        makes a control token even of single characters.
        """
        encode = encode or self.ids
        broken = [self._without_control(text) for text in texts]
        whole = render(broken)
        if any(map(self._may_join, broken)):
            isolated = render([f"{_BREAK}{text}{_BREAK}" for text in broken])
            if self._control.findall(isolated) != self._control.findall(whole):
                whole = isolated
        ids = encode(whole)
        if self._normalizes and self._has_more(ids, whole):
            whole = render([_BREAK.join(text) for text in broken])
            ids = encode(whole)
            if self._has_more(ids, whole):
                raise ValueError("the tokenizer makes control tokens of ordinary characters")
        return ids

    def ids(self, rendered: str) -> list[int]:
        """Ids of a text in which all that looks like a control token is one."""
        encode = self._tokenizer.encode
        if _BREAK not in rendered:
            return encode(rendered, add_special_tokens=False)
        parts = filter(None, rendered.split(_BREAK))
        return [index for part in parts for index in encode(part, add_special_tokens=False)]

    def spells(self, text: str, ids: Sequence[int]) -> bool:
        """Whether ids that were made of a text hold what looks like control tokens as text."""
        looks = Counter(self._control.findall(text))
        if not looks:
            return True
        control = set(self._control_ids.values())
        plain = self._tokenizer.decode([index for index in ids if index not in control])
        plain = plain.replace(" ", "")  # some tokenizers begin each part with a space
        return all(plain.count(name.replace(" ", "")) >= n for name, n in looks.items())

    def _without_control(self, text: str) -> str:
        if _BREAK in text:
            text = text.replace(_BREAK, _UNKNOWN)
        while self._control.search(text):  # what is left of one may be another
            text = self._control.sub(_halves, text)
        return text

    def _may_join(self, text: str) -> bool:
        """Whether a control token could lie across an end of the text, or around it."""
        ends = range(1, min(self._longest, len(text) + 1))
        if any(text[-end:] in self._heads or text[:end] in self._tails for end in ends):
            return True
        return len(text) < self._longest and any(text in name for name in self._control_ids)

    def _has_more(self, ids: Sequence[int], rendered: str) -> bool:
        """Whether there are control tokens that `rendered` does not spell out."""
        spelled = Counter(self._control_ids[name] for name in self._control.findall(rendered))
        control = set(self._control_ids.values())
        return bool(Counter(index for index in ids if index in control) - spelled)


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
        """By what each token adds to the text of those shortly before it."""
        strings: list[str] = []
        begin = end = 0  # of the tokens whose text is known and stands before the next one's
        for count in range(1, len(ids) + 1):
            known, text = self.text(ids[begin:end]), self.text(ids[begin:count])
            if text.endswith(_UNKNOWN) and count < len(ids):
                strings.append("")
                continue
            strings.append(text[len(known) :])
            begin, end = end, count
        return strings


def shorten(text: str) -> tuple[str, int]:
    """The text's first `MAX_CHARACTERS`, and how many characters came after them.

    Surrogates, which no file and no tokenizer takes, become U+FFFD.
    """
    cut = max(len(text) - MAX_CHARACTERS, 0)
    return _SURROGATES.sub("\ufffd", text[:MAX_CHARACTERS]), cut


def _is_control(token: Any, unknown: str | None) -> bool:
    """Not a run of spaces, nor a single character unless it is special."""
    if len(token.content.strip()) > 1:
        return True
    return token.special and token.content != unknown


def _halves(match: re.Match[str]) -> str:
    name = match[0]
    return f"{name[0]}{_BREAK}{name[1:]}" if len(name) > 1 else _UNKNOWN
