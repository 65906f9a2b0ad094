"""How long a text of a game or a player may be, so that none fills memory, files or prompts."""

import re

MAX_CHARACTERS = 20_000
"""Of what a game says at once, of an action, of an endpoint's reply."""
MAX_EVENTS = 12_000
"""Characters of what happened in a game, about 3,000 tokens: of more, the oldest events are left
out; the last is kept."""
_HALVES = re.compile("[\ud800-\udfff]")


def bounded(text: str) -> tuple[str, int]:
    """The text's first `MAX_CHARACTERS`, and how many characters came after them.

    Surrogates, which no file and no tokenizer takes, become U+FFFD.
    """
    cut = max(len(text) - MAX_CHARACTERS, 0)
    return _HALVES.sub("\ufffd", text[:MAX_CHARACTERS]), cut
