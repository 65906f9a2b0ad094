"""Thoughts: the part of an answer that is private, by the tags around it.

What stands before the last closing tag is a thought, and what follows an opening tag that is not
closed. Tags may be added tokens, special ones too, or ordinary text.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Tags(NamedTuple):
    """What begins and ends a thought. Tags("[THINK]", "[/THINK]")"""

    open: str
    close: str


THINK = Tags("<think>", "</think>")
KNOWN = (
    THINK,
    Tags("[THINK]", "[/THINK]"),
    Tags("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<reasoning>", "</reasoning>"),
    Tags("<thinking>", "</thinking>"),
)
"""Pairs that models are known to use; the first that a tokenizer has is its own."""


def find_tags(tokenizer: Any) -> Tags:
    """The known pair that a tokenizer has as added tokens, or its chat template by name."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    template = str(getattr(tokenizer, "chat_template", ""))
    for tags in KNOWN:
        if added.issuperset(tags) or all(tag in template for tag in tags):
            return tags
    return THINK


def split_thought(text: str, tags: Tags = THINK) -> tuple[str, str]:
    """The thought of an answer and what is left of it, also where a tag is missing."""
    before, close, rest = text.rpartition(tags.close)
    rest, open_again, unclosed = rest.partition(tags.open)
    if not close:
        return unclosed, rest
    head, opened, thought = before.partition(tags.open)
    return (thought if opened else head) + open_again + unclosed, rest


class AnswerText:
    """Makes text of an answer's ids, in which the tags of thoughts stay whatever tokens they are.

    Other special tokens only mark something, and are left out.
    """

    def __init__(self, tokenizer: Any, tags: Tags, tag_ids: Sequence[list[int]]) -> None:
        """`tag_ids` are the ids of the two tags where they are control tokens."""
        self._tokenizer, self._tags = tokenizer, tags
        self._close_ids = tag_ids[1]
        pairs = zip(tags, tag_ids, strict=True)
        self._hidden = [(tag, ids) for tag, ids in pairs if tag not in self._plain(ids)]

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of the ids."""
        if not self._hidden:
            return self._plain(token_ids)
        parts, start = [], 0
        for tag, first, end in self._hidden_tags(token_ids):
            parts += [self._plain(token_ids[start:first]), tag]
            start = end
        return "".join([*parts, self._plain(token_ids[start:])])

    def thought_length(self, token_ids: Sequence[int], text: str, *, is_opened: bool) -> int:
        """How many of the ids are the thought, its closing tag included; `text` is that of all.

        With `is_opened` the prompt ends in the opening tag.
        """
        tags, number = self._tags, len(token_ids)
        count = text.count(tags.close)
        if tags.open in text.rpartition(tags.close)[2]:
            return number
        if not count:
            return number if is_opened else 0
        width = len(self._close_ids)
        for end in range(number, width - 1, -1):
            if list(token_ids[end - width : end]) == self._close_ids:
                if tags.close not in self.text(token_ids[end:]):
                    return end
                break
        lengths = range(number + 1)
        return bisect_left(lengths, count, key=lambda n: self.text(token_ids[:n]).count(tags.close))

    def _plain(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode([*token_ids], skip_special_tokens=True))

    def _hidden_tags(self, token_ids: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Tags of special tokens, with their first place and the one after their last."""
        place = 0
        while place < len(token_ids):
            for tag, ids in self._hidden:
                if list(token_ids[place : place + len(ids)]) == ids:
                    yield tag, place, place + len(ids)
                    place += len(ids)
                    break
            else:
                place += 1
