"""Generated games: `games.env: generated:SEED` is a small card game for two that the seed draws.

One half of the seeds are rounds of betting with hidden cards, the other half are sealed bids of
cards for prizes. The seed draws sizes, stakes, the order of the cards and all names; the rules
state them. Every game is zero-sum and small enough to be solved exactly.
"""

import copy
import re
from abc import abstractmethod
from typing import Any, Self

from unstable.config import ConfigError, shown
from unstable.contrib.environments.generated_rules import Betting, Bidding, drawn
from unstable.games.chance import draw, weighted
from unstable.games.environment import Environment, EnvStep
from unstable.games.info import Compact, GameInfo, SmallTree
from unstable.types import Observation


class GeneratedGame(Environment):
    """A play of a drawn game; `environment_class` makes the class of each seed.

    The state consists of immutable values, so that a shallow copy is a copy of the play.
    """

    action_form = "brackets"
    mover = 0
    rules: Any  # `Betting` or `Bidding`
    brief: str  # the rules in words
    _notice = ""

    @abstractmethod
    def _begin(self) -> None:
        """Start a game."""

    @abstractmethod
    def _legal(self) -> list[str]:
        """Return the words that the mover may say."""

    @abstractmethod
    def _play(self, word: str) -> bool:
        """Make the mover's move; returns whether the game is over."""

    @abstractmethod
    def _line(self) -> str:
        """Return what the mover sees."""

    def reset(self, seats: int, seed: int) -> None:
        assert seats == 2, "a generated game has 2 seats"
        self.mover, self._notice = 0, ""
        self._begin()

    def observe(self) -> Observation:
        return Observation(
            seat=self.mover,
            rules=f"You are player {self.mover}. {self.brief}",
            events=[],
            board=f"{position(self)}\nYour actions: {', '.join(self.legal_moves())}",
            notice=self._notice,
        )

    def legal_moves(self) -> list[str]:
        return [f"[{word}]" for word in self._legal()]

    def step(self, action: str) -> EnvStep:
        if action.strip() not in self.legal_moves():
            self._notice = f"The action must be one of {', '.join(self.legal_moves())}."
            return EnvStep(over=False, refused=True, reason=self._notice)
        self._notice = ""
        return EnvStep(over=self._play(action.strip()[1:-1]), refused=False)

    def copied(self) -> Self:
        return copy.copy(self)


class BettingGame(GeneratedGame):
    """A play of `Betting`."""

    rules: Betting

    def _begin(self) -> None:
        self._left = (self.rules.copies,) * len(self.rules.cards.names)
        self._held = self._dealt(), self._dealt()
        self._open: int | None = None
        self._said: tuple[tuple[str, ...], ...] = ((),)  # by round
        self._paid = (self.rules.ante, self.rules.ante)

    def _dealt(self) -> int:
        kinds = [kind for kind, left in enumerate(self._left) if left]
        found = kinds[weighted([self._left[kind] / sum(self._left) for kind in kinds])]
        self._left = tuple(left - (kind == found) for kind, left in enumerate(self._left))
        return found

    def _legal(self) -> list[str]:
        rules = self.rules
        made = sum(word in rules.raises for word in self._said[-1])
        more = rules.raises if made < rules.most else ()
        return [rules.fold, rules.call, *more] if made else [rules.check, *more]

    def _play(self, word: str) -> bool:
        rules, turn = self.rules, len(self._said) - 1
        before = self._said[-1]
        self._said = (*self._said[:-1], (*before, word))
        if word == rules.fold:
            return True
        if word != rules.check:
            more = rules.sizes[turn][rules.raises.index(word)] if word in rules.raises else 0
            own, other = max(self._paid) + more, self._paid[1 - self.mover]
            self._paid = (other, own) if self.mover else (own, other)
        if word != rules.call and (word, *before) != (rules.check, rules.check):
            self.mover = 1 - self.mover
            return False
        if turn + 1 == len(rules.sizes):
            return True
        self._open, self._said, self.mover = self._dealt(), (*self._said, ()), rules.opener
        return False

    def payoffs(self) -> list[float]:
        if self._said[-1][-1] == self.rules.fold:
            sign = 1 if self.mover else -1
        else:
            sign = self._compare()
        won = sign * min(self._paid)
        return [float(won), float(-won)]

    def _compare(self) -> int:
        one, other = self._held
        if one != other and self._open in self._held:
            return 1 if (one == self._open) == self.rules.pairs_win else -1
        return self.rules.cards.compare(one, other)

    def scale(self) -> float:
        return float(self.rules.ante + self.rules.most * sum(map(max, self.rules.sizes)))

    def _names(self, *cards: int | None) -> str:
        names = self.rules.cards.names
        return " ".join("-" if card is None else names[card] for card in cards)

    def _spoken(self) -> str:
        return " / ".join(" ".join(words) for words in self._said)

    def _line(self) -> str:
        seen = [self._held[self.mover], *([self._open] if len(self.rules.sizes) > 1 else [])]
        return f"{self._names(*seen)} {sum(self._paid)} {self._spoken()}".rstrip()

    def whole_state(self) -> str:
        """Return both cards, the open one, and all that was said, which fixes the chips."""
        return f"{self._names(*self._held, self._open)} {self._spoken()}"


class BiddingGame(GeneratedGame):
    """A play of `Bidding`."""

    rules: Bidding

    def _begin(self) -> None:
        self._left = self.rules.prizes
        self._past: tuple[tuple[int, int, int], ...] = ()  # points, and the seats' cards
        self._secret: int | None = None  # seat 0's card for the current prize
        self._won = 0  # seat 0's points less seat 1's
        self._stake = 0
        self._offer()

    def _offer(self) -> None:
        left = [*self._left]
        self._stake += draw(left) if self.rules.shuffled else left.pop(0)
        self._left = tuple(left)

    def _legal(self) -> list[str]:
        out = {past[1 + self.mover] for past in self._past}
        return [name for card, name in enumerate(self.rules.cards.names) if card not in out]

    def _play(self, word: str) -> bool:
        card = self.rules.cards.names.index(word)
        if self._secret is None:
            self._secret, self.mover = card, 1
            return False
        sign = self.rules.cards.compare(self._secret, card)
        self._past = (*self._past, (self._stake, self._secret, card))
        self._won += sign * self._stake
        if sign or not self.rules.kept:
            self._stake = 0
        self._secret, self.mover = None, 0
        if self._left:
            self._offer()
            return False
        return True

    def payoffs(self) -> list[float]:
        return [float(self._won), float(-self._won)]

    def scale(self) -> float:
        return float(sum(self.rules.prizes))

    def _line(self) -> str:
        cards = self.rules.cards
        told = ""
        for points, *bids in self._past:
            own, other = bids[self.mover], bids[1 - self.mover]
            result = cards.names[other] if self.rules.revealed else "=+-"[cards.compare(own, other)]
            told += f"{points} {cards.names[own]} {result}, "
        return f"{told}{self._stake}"

    def whole_state(self) -> str:
        """Return past prizes with both cards, the points offered now, and a pending card."""
        names = self.rules.cards.names
        told = (f"{points} {names[one]} {names[other]}" for points, one, other in self._past)
        secret = "" if self._secret is None else f" {names[self._secret]}"
        return f"{', '.join([*told, str(self._stake)])}{secret}"


def position(env: GeneratedGame) -> str:
    """Return the mover's number, what it sees, and its legal moves: 1 lun 3 dab: fol gim."""
    return f"{env.mover} {env._line()}: {' '.join(env._legal())}"


def environment_class(name: str) -> type[GeneratedGame]:
    """Return the class of `SEED`; raises `ConfigError` for anything but a number."""
    if not re.fullmatch(r"[0-9]{1,18}", name):
        raise ConfigError(
            f"target = {shown(f'generated:{name}')}: no seed; write one such as generated:3"
        )
    return game_class(f"generated:{int(name)}", drawn(int(name)))


def game_class(name: str, rules: Betting | Bidding) -> type[GeneratedGame]:
    """Return the class of a game with these rules."""
    kind: type[GeneratedGame] = BettingGame if isinstance(rules, Betting) else BiddingGame
    brief = rules.brief()
    info = GameInfo(
        name=name, small_tree=SmallTree(is_open=False), compact=Compact(brief, position)
    )
    return type(kind.__name__, (kind,), {"rules": rules, "brief": brief, "info": info})
