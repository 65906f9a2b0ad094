"""Text becomes ids, and is never control: no id made of it is one of the added tokens.

The chat template writes those (<|im_end|>, <think>), and there they are read as what they are. In a
text each is broken in two, and its halves are encoded separately. Any other text is encoded as it
is.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from unstable.prompts.text import UNKNOWN

_BREAK = "\ufdd0"  # its two sides are encoded separately; Unicode keeps it out of all text

Render = Callable[[Sequence[str]], str]
"""Puts texts where a template has them."""


class TextEncoder:
    """Encodes texts within a template, whatever the texts hold.

    Added tokens that are white space mark nothing, and stay what they are in a text.
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
        if _BREAK not in rendered:
            return self._plain_ids(rendered)
        parts = filter(None, rendered.split(_BREAK))
        return [index for part in parts for index in self._plain_ids(part)]

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
            text = text.replace(_BREAK, UNKNOWN)
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


def _plain_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Ids of a text, to which nothing is added.

    By the tokenizer in Rust where there is one: half of transformers' own time is spent around it,
    and on where in the text each token stands.
    """
    tokenizer.encode("", add_special_tokens=False)  # sets that nothing is cut or padded
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return partial(tokenizer.encode, add_special_tokens=False)
    return lambda text: backend.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _is_control(token: Any, unknown: str | None) -> bool:
    """Whether it is neither a run of spaces, nor a single character that is not special."""
    if len(token.content.strip()) > 1:
        return True
    return token.special and token.content != unknown


def _halves(match: re.Match[str]) -> str:
    name = match[0]
    return f"{name[0]}{_BREAK}{name[1:]}" if len(name) > 1 else UNKNOWN
