"""Kuhn poker in the chats of verifiers' environment, as an env of ours, for exact exploitability.

A run's model plays verifiers' environment (verifiers_kuhn.py). This file has the same deals, moves
and payoffs as a game whose tree can be expanded, and presents each decision as the chat that
verifiers sends. It reads the chats from the output of verifiers_chats.py.
"""

import json
import random
import re
from pathlib import Path

from unstable.games import Compact, GameInfo, Question, SmallTree
from unstable.games.environment import Environment, EnvStep
from unstable.types import Observation

LEGAL = {
    (): ["[check]", "[bet]"],
    ("[check]",): ["[check]", "[bet]"],
    ("[bet]",): ["[fold]", "[call]"],
    ("[check]", "[bet]"): ["[fold]", "[call]"],
}
"""Legal actions by the moves so far; after any other moves the hand is over."""
Chat = tuple[dict[str, str], ...]


class KuhnChats(Environment):
    """One hand; seat 0 moves first, an ante and a bet are one chip each."""

    def __init__(self, chats: str) -> None:
        """Read the chats from the file `chats`."""
        self.chats = _read(chats)
        blocks = _constant([chat[0]["content"] for chat in self.chats.values()])

        def card(rng: random.Random) -> tuple[str, list[str]]:
            (own, _), chat = rng.choice(list(self.chats.items()))
            return f"{_text(chat)}?", [own]

        def move(rng: random.Random) -> tuple[str, list[str]]:
            (_, moves), chat = rng.choice(list(self.chats.items()))
            named = rng.choice(LEGAL[moves])
            return f"{_text(chat)}! {named}", [named]

        self.info = GameInfo(
            name="KuhnChats",
            compact=Compact(brief=blocks[0], position=lambda env: _text(env.chat)),
            questions=(Question(blocks[-1], card), Question(blocks[-1], move)),
            small_tree=SmallTree(is_open=False),
        )

    def reset(self, seats: int, seed: int) -> None:
        assert seats == 2, "two play"
        self.cards = random.sample("JQK", 2)
        self.moves: tuple[str, ...] = ()

    @property
    def mover(self) -> int:
        """Seat to move; seats alternate."""
        return len(self.moves) % 2

    @property
    def chat(self) -> Chat:
        """Chat that requests the current decision; the last one once the hand is over."""
        moves = self.moves if self.moves in LEGAL else self.moves[:-1]
        return self.chats[self.cards[len(moves) % 2], moves]

    def observe(self) -> Observation:
        return Observation(
            seat=self.mover, rules="", events=[], board="", notice="", chat=self.chat
        )

    def legal_moves(self) -> list[str]:
        return LEGAL[self.moves]

    def step(self, action: str) -> EnvStep:
        if action not in LEGAL[self.moves]:
            return EnvStep(over=False, refused=True, reason="That is no legal move.")
        self.moves = (*self.moves, action)
        return EnvStep(over=self.moves not in LEGAL, refused=False)

    def payoffs(self) -> list[float]:
        first = self.cards[0] == "K" or self.cards[1] == "J"
        if self.moves[-1] == "[fold]":
            first = len(self.moves) % 2 == 0  # seat 1 has folded
        won = 2.0 if self.moves[-1] == "[call]" else 1.0
        return [won, -won] if first else [-won, won]

    def scale(self) -> float:
        """Return the most that a seat can win or lose: an ante and a bet."""
        return 2.0


def _read(path: str) -> dict[tuple[str, tuple[str, ...]], Chat]:
    """Return each decision's chat, by the card and the moves in it."""
    found: dict[tuple[str, tuple[str, ...]], Chat] = {}
    for row in json.loads(Path(path).read_text()):
        chat = tuple(row["messages"])
        (card,) = re.findall(r"card: ([JQK])\b", chat[0]["content"])
        moves = tuple(re.findall(r"chose (\[\w+\])", chat[-1]["content"]))
        assert LEGAL[moves] == row["legal"], "the same rules"
        found[card, moves] = chat
    assert len(found) == 3 * len(LEGAL), "all decisions"
    return found


def _text(chat: Chat) -> str:
    return "\n".join(message["content"] for message in chat)


def _constant(texts: list[str]) -> list[str]:
    """Return the blocks of lines that all texts contain, the longest first."""
    blocks: list[str] = []
    open_block = False
    for line in texts[0].split("\n"):
        grown = f"{blocks[-1]}\n{line}" if open_block else line
        open_block = bool(line) and all(f"{grown}\n" in text for text in texts)
        if open_block:
            blocks[-1:] = [grown] if "\n" in grown else [*blocks[-1:], grown]
    return sorted(blocks, key=len, reverse=True)
