"""Thoughts: the private part of an answer, marked by tags.

The text before the last closing tag is a thought, and so is the text after an opening tag without
a closing one. Tags may be added tokens, including special tokens, or ordinary text.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from unstable.config import ThoughtsConfig
from unstable.prompts.encoder import TextEncoder


class Tags(NamedTuple):
    """The texts that begin and end a thought: Tags("[THINK]", "[/THINK]")."""

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
"""Pairs that models are known to use; a tokenizer's pair is the first that it has."""


def find_tags(tokenizer: Any) -> Tags:
    """Return the known pair that is in a tokenizer's added tokens or chat template, or `THINK`."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    template = str(getattr(tokenizer, "chat_template", ""))
    for tags in KNOWN:
        if added.issuperset(tags) or all(tag in template for tag in tags):
            return tags
    return THINK


def split_thought(text: str, tags: Tags = THINK) -> tuple[str, str]:
    """Split an answer into its thought and the rest; either tag may be missing."""
    before, close, rest = text.rpartition(tags.close)
    rest, open_again, unclosed = rest.partition(tags.open)
    if not close:
        return unclosed, rest
    head, opened, thought = before.partition(tags.open)
    return (thought if opened else head) + open_again + unclosed, rest


class AnswerText:
    """Decoder of answers that keeps the tags of thoughts, even if they are special tokens.

    Other special tokens are omitted.
    """

    def __init__(self, tokenizer: Any, thoughts: ThoughtsConfig) -> None:
        tags = find_tags(tokenizer) if thoughts.tags == "auto" else Tags(*thoughts.tags)
        self._tokenizer, self.tags = tokenizer, tags
        tag_ids = [*map(TextEncoder(tokenizer).ids, tags)]
        self._close_ids = tag_ids[1]
        pairs = zip(tags, tag_ids, strict=True)
        self._hidden = [(tag, ids) for tag, ids in pairs if tag not in self._plain(ids)]

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode ids."""
        if not self._hidden:
            return self._plain(token_ids)
        parts, start = [], 0
        for tag, first, end in self._hidden_tags(token_ids):
            parts += [self._plain(token_ids[start:first]), tag]
            start = end
        return "".join([*parts, self._plain(token_ids[start:])])

    def thought_length(self, token_ids: Sequence[int], text: str, *, is_opened: bool) -> int:
        """Return how many ids the thought has, including its closing tag.

        `text` is the text of all ids. With `is_opened` the prompt ends with the opening tag.
        """
        tags, number = self.tags, len(token_ids)
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
        """Yield each tag made of special tokens, with the start and end index of its ids."""
        place = 0
        while place < len(token_ids):
            for tag, ids in self._hidden:
                if list(token_ids[place : place + len(ids)]) == ids:
                    yield tag, place, place + len(ids)
                    place += len(ids)
                    break
            else:
                place += 1
