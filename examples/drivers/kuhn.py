"""Kuhn poker in an external program: it deals, queries the seats by URL, and reports the winner.

    unstable train --config examples/drivers/kuhn.yaml

The run starts it (`driver:examples.drivers.kuhn:Kuhn`). In another terminal, or on another machine,
it takes games of a run that listens: `python -m examples.drivers.kuhn URL`.
"""

import random
import sys

from unstable.drivers import OpenGame, drive

RULES = (
    "Kuhn poker with a jack, a queen and a king; the higher card wins the pot, and chips of all "
    "rounds add up. A line is your card, the round, your lead in chips before it, the moves of the "
    "round, and after the colon the actions that you may choose from. Answer with one of these, "
    "nothing else."
)
LEGAL = {
    (): ("check", "bet"),
    ("check",): ("check", "bet"),
    ("bet",): ("fold", "call"),
    ("check", "bet"): ("fold", "call"),
}
"""Legal actions by the moves so far; after any other moves the hand is over."""


class Kuhn:
    """A hand of Kuhn poker; each seat first puts `ante` chips in the pot."""

    def __init__(self, ante: int = 1) -> None:
        self.ante = ante

    async def play(self, game: OpenGame) -> dict:
        """Play one hand; returns each seat's payoff."""
        chance = random.Random(game.seed)
        cards = chance.sample("JQK", 2)
        first = chance.randrange(2)  # the seat that moves first
        moves: tuple[str, ...] = ()
        while moves in LEGAL:
            seat = (first + len(moves)) % 2
            legal = LEGAL[moves]
            so_far = " ".join(["", *moves])
            asked = f"{RULES}\n{cards[seat]} 1/1 +0{so_far}: {' '.join(legal)}"
            reply = await game.ask(seat, [{"role": "user", "content": asked}], legal_moves=legal)
            if reply["content"] not in legal:
                return {"forfeit": seat, "reason": f"seat {seat} answers {reply['content']!r}"}
            moves = (*moves, reply["content"])
        if moves[-1] == "fold":
            winner, chips = (first + len(moves)) % 2, self.ante
        else:
            winner = max((0, 1), key=lambda seat: "JQK".index(cards[seat]))
            chips = self.ante + moves.count("bet")
        return {"payoffs": [chips if seat == winner else -chips for seat in (0, 1)]}


if __name__ == "__main__":
    drive(Kuhn().play, sys.argv[1], at_once=64)
