"""Encoding of text into ids, such that no text becomes a control token.

Only the chat template may write control tokens (<|im_end|>, <think>). In a text, each string that
spells one is split in two, and its halves are encoded separately. Any other text is encoded
unchanged.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from unstable.prompts.text import UNKNOWN

_BREAK = "\ufdd0"  # separates texts to encode; a Unicode noncharacter, so never in text

Render = Callable[[Sequence[str]], str]
"""Function that inserts texts into a template."""


class TextEncoder:
    """Encoder of texts within a template, for texts of any content.

    Added tokens that are white space are not control tokens, and texts may contain them.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._plain_ids = _plain_encoder(tokenizer)
        added = {
            index: token
            for index, token in tokenizer.added_tokens_decoder.items()
            if _is_control(token, tokenizer.unk_token)
        }
        self._control_ids = {token.content: index for index, token in added.items()}
        # Tokenizers match added tokens that are not normalized in raw text, verbatim.
        self._normalizes = any(token.normalized for token in added.values())
        names = sorted(self._control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._longest = max(map(len, names), default=0)
        self._firsts, self._lasts = {name[0] for name in names}, {name[-1] for name in names}
        self._heads = {name[:end] for name in names for end in range(1, len(name))}
        self._tails = {name[start:] for name in names for start in range(1, len(name))}

    def encode(
        self,
        texts: Sequence[str],
        render: Render = "".join,
        encode: Callable[[str], list[int]] | None = None,
    ) -> list[int]:
        """Return the ids of `render(texts)`, in which only the template has control tokens.

        `encode` replaces `ids` if given. Raises `ValueError` if the tokenizer's normalizer makes
        control tokens even of single characters.
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
                raise ValueError("the tokenizer turns ordinary characters into control tokens")
        return ids

    def ids(self, rendered: str) -> list[int]:
        """Return the ids of a text in which every string that spells a control token is one."""
        if _BREAK not in rendered:
            return self._plain_ids(rendered)
        parts = filter(None, rendered.split(_BREAK))
        return [index for part in parts for index in self._plain_ids(part)]

    def spells(self, text: str, ids: Sequence[int]) -> bool:
        """Return whether the ids of a text contain its apparent control tokens as plain text."""
        looks = Counter(self._control.findall(text))
        if not looks:
            return True
        control = set(self._control_ids.values())
        plain = self._tokenizer.decode([index for index in ids if index not in control])
        plain = plain.replace(" ", "")  # some tokenizers prepend a space to each part
        return all(plain.count(name.replace(" ", "")) >= n for name, n in looks.items())

    def _without_control(self, text: str) -> str:
        if _BREAK in text:
            text = text.replace(_BREAK, UNKNOWN)
        while self._control.search(text):  # each half may contain another control token
            text = self._control.sub(_halves, text)
        return text

    def _may_join(self, text: str) -> bool:
        """Return whether a control token could span an end of the text, or contain the text."""
        first, last = text[: self._longest], text[-self._longest :]
        if not (self._firsts.isdisjoint(last) and self._lasts.isdisjoint(first)):
            ends = range(1, min(self._longest, len(text) + 1))
            if any(text[-end:] in self._heads or text[:end] in self._tails for end in ends):
                return True
        return len(text) < self._longest and any(text in name for name in self._control_ids)

    def _has_more(self, ids: Sequence[int], rendered: str) -> bool:
        """Return whether the ids contain control tokens that `rendered` does not spell."""
        spelled = Counter(self._control_ids[name] for name in self._control.findall(rendered))
        control = set(self._control_ids.values())
        return bool(Counter(index for index in ids if index in control) - spelled)


def _plain_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Return a function from a text to its ids, without special tokens.

    It calls the Rust tokenizer directly if there is one: transformers spends half of its time on
    overhead and on the offsets of tokens in the text.
    """
    tokenizer.encode("", add_special_tokens=False)  # disables truncation and padding
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return partial(tokenizer.encode, add_special_tokens=False)
    return lambda text: backend.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _is_control(token: Any, unknown: str | None) -> bool:
    """Return whether a token has over one visible character, or is special and not `unknown`."""
    if len(token.content.strip()) > 1:
        return True
    return token.special and token.content != unknown


def _halves(match: re.Match[str]) -> str:
    name = match[0]
    return f"{name[0]}{_BREAK}{name[1:]}" if len(name) > 1 else UNKNOWN
