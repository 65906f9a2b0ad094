"""Rules of generated games: how a seed draws them, and their words.

The two forms are rounds of betting with hidden cards, and sealed bids of cards for prizes.
"""

from collections.abc import Sequence
from math import perm
from random import Random
from typing import NamedTuple

MOST_DECISIONS = 1000
"""Maximum number of positions that the seats can tell apart."""
_CONSONANTS, _VOWELS = "bdfghlmnprstvwz", "aeiou"
_ANSWER = "Answer with one of them, nothing else."


class Cards(NamedTuple):
    """Names of cards, from the weakest to the strongest, and an exception to this order."""

    names: tuple[str, ...]
    upset: bool  # the weakest beats the strongest

    def compare(self, one: int, other: int) -> int:
        """Return 1 if the first card beats the second, -1 if it loses, 0 if they are equal."""
        sign = (one > other) - (one < other)
        return -sign if self.upset and abs(one - other) == len(self.names) - 1 else sign

    def order(self) -> str:
        """Return the order in words.

        >>> Cards(("dab", "fol", "gim"), True).order()
        'from weakest to strongest dab, fol and gim, except that dab beats gim'
        """
        weakest, strongest = self.names[0], self.names[-1]
        upset = f", except that {weakest} beats {strongest}" if self.upset else ""
        return f"from weakest to strongest {_listed(self.names)}{upset}"


class Betting(NamedTuple):
    """Rules of a game of betting; with two rounds, a card is opened before the second."""

    cards: Cards
    copies: int  # of each card
    ante: int
    raises: tuple[str, ...]  # names of raises
    sizes: tuple[tuple[int, ...], ...]  # chips of each raise, by round of betting
    most: int  # raises in a round
    opener: int  # seat that opens the second round
    pairs_win: bool  # a card like the open one beats all others; else it loses to them
    check: str
    call: str
    fold: str

    def decisions(self) -> int:
        """Return the number of positions that a seat to move can tell apart."""
        kinds, raises = len(self.cards.names), len(self.raises)
        each = 2 * sum(raises**made for made in range(self.most + 1))
        ends = each - 1  # of a round, without folds
        return kinds * each + (kinds**2 * ends * each if len(self.sizes) > 1 else 0)

    def brief(self) -> str:
        """Return the rules and the format of a position."""
        by_raise = zip(self.raises, zip(*self.sizes, strict=True), strict=True)
        ways = ", ".join(
            f"{name} to put in {_of_rounds(chips)} more than the other" for name, chips in by_raise
        )
        later = opened = seen = parted = ""
        if len(self.sizes) > 1:
            later = f"; then a card is opened, and player {self.opener} opens a second round"
            rank = "beats" if self.pairs_win else "loses to"
            opened = f" A card like the open one {rank} all others."
            seen, parted = "the open one (- before), ", " with a / where the card was opened"
        return (
            f"Two players put in {self.ante} each and get a card, unseen by the other. The deck "
            f"has {self.copies} of each card: {self.cards.order()}.{opened} Player 0 opens a round "
            f"of betting{later}. Say {self.check} to add nothing while nobody has raised, "
            f"{self.call} to put in as much as the other, {ways}, {self.fold} to lose what you "
            f"have put in. A round has at most {self.most} raises, and ends with {self.call} or "
            f"two {self.check}. At last the better card wins what the other has put in; equal "
            f"cards win nothing. A line is your player number, your card, {seen}the "
            f"sum put in, what was said{parted}, and after the colon the words that you may say "
            f"now. {_ANSWER}"
        )


class Bidding(NamedTuple):
    """Rules of a game of sealed bids: each seat has one card of each kind, and bids each once."""

    cards: Cards
    prizes: tuple[int, ...]  # points
    shuffled: bool  # chance orders the prizes
    revealed: bool  # seats see the other's bids; else only who wins
    kept: bool  # the points of a tie are added to the next prize

    def decisions(self) -> int:
        """Return the number of positions that a seat to move can tell apart, or more."""
        kinds, prizes = len(self.cards.names), len(self.prizes)
        return sum(
            2 * perm(kinds, turn) ** 2 * (perm(prizes, turn + 1) if self.shuffled else 1)
            for turn in range(prizes)
        )

    def brief(self) -> str:
        """Return the rules and the format of a position."""
        order = "in random order" if self.shuffled else "in this order"
        shown = "and both are shown" if self.revealed else "and you only learn who wins"
        other = "the other's card" if self.revealed else "+ (won), - (lost) or = (equal)"
        tie = "the points are added to the next prize" if self.kept else "nobody wins it"
        return (
            f"Two players have one card of each kind: {self.cards.order()}. Prizes of "
            f"{_listed([*map(str, self.prizes)])} points are offered {order}, one at a time. For "
            f"each, both choose a card in secret, {shown}; the better card wins, and both cards "
            f"are out. If they are equal, {tie}. The difference in points is what you win. A line "
            f"is your player number, each past prize with your card and {other}, the points "
            f"offered now, and after the colon the cards that you may choose from. {_ANSWER}"
        )


def drawn(seed: int) -> "Betting | Bidding":
    """Return the rules of a seed: of either form, with at most `MOST_DECISIONS` decisions."""
    rng = Random(seed)
    draw = rng.choice((_betting, _bidding))
    rules = draw(rng)
    while rules.decisions() > MOST_DECISIONS:
        rules = draw(rng)
    return rules


def _betting(rng: Random) -> Betting:
    kinds, raises = rng.randint(3, 5), rng.randint(1, 2)
    check, call, fold, *names = _words(rng, 3 + raises + kinds)
    first = rng.sample(range(1, 5), raises)
    rounds = rng.choice(([1], [1, rng.randint(1, 3)]))
    return Betting(
        cards=Cards(tuple(names[raises:]), upset=rng.random() < 0.5),
        copies=rng.randint(len(rounds), 3),
        ante=rng.randint(1, 3),
        raises=tuple(names[:raises]),
        sizes=tuple(tuple(factor * chips for chips in first) for factor in rounds),
        most=rng.randint(1, 2),
        opener=rng.randrange(2),
        pairs_win=rng.random() < 0.7,
        check=check,
        call=call,
        fold=fold,
    )


def _bidding(rng: Random) -> Bidding:
    kinds = rng.randint(3, 5)
    return Bidding(
        cards=Cards(tuple(_words(rng, kinds)), upset=rng.random() < 0.5),
        prizes=tuple(rng.sample(range(1, 10), rng.randint(2, 3))),
        shuffled=rng.random() < 0.5,
        revealed=rng.random() < 0.5,
        kept=rng.random() < 0.5,
    )


def _words(rng: Random, count: int) -> list[str]:
    """Return invented words with different initials."""
    initials = rng.sample(_CONSONANTS, count)
    return [f"{each}{rng.choice(_VOWELS)}{rng.choice(_CONSONANTS)}" for each in initials]


def _of_rounds(chips: Sequence[int]) -> str:
    """Return the size of a raise in words, by round if it changes.

    >>> _of_rounds([2, 2]), _of_rounds([2, 4])
    ('2', '2 (4 in the second round)')
    """
    first, *second = dict.fromkeys(chips)
    return f"{first} ({second[0]} in the second round)" if second else str(first)


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"
