"""Relabelled games: `games.env: relabelled:SEED:ENV` is the same game tree in other words.

A seed renames moves, cards and marks, and the rules use other sentences. A policy that
knows the game, not only its words, plays as well. `relabelled:3:TicTacToe-v0` is an example;
`GAMES` has the games.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from unstable.config import ConfigError, GameConfig, nearest
from unstable.games.environment import Environment, EnvStep
from unstable.games.info import Compact, Expert, GameInfo, Probabilities
from unstable.games.services import game_info, make_environment
from unstable.games.textarena import env_class
from unstable.types import Observation

_CONSONANTS, _VOWELS = "bdfghlmnprstvwz", "aeiou"
_LETTERS = "bcdefghilmnprstuvwyz"


class GameWords(NamedTuple):
    """A game's words to rename, and its rules; `{bet}` in a text is the new name of `bet`."""

    named: tuple[str, ...]  # get names of three letters
    initials: Mapping[str, str]  # by letter: the word whose new name begins with its new letter
    letters: str  # get single letters, also within words
    rules: str  # `{seat}` is the number of the seat to move
    brief: str


_CARDS = {"J": "jack", "Q": "queen", "K": "king"}
_ACTIONS = (
    "Say {check} to add nothing while nobody has raised the stake, {bet} to raise it, {call} to "
    "match the other's stake, {fold} to lose what you have put in"
)
_RAISE = "{raise} to match it and raise it once more"
_LINE = "After the colon are the words that you may say now. Answer with one of them, nothing else."
GAMES = {
    "KuhnPoker": GameWords(
        ("check", "bet", "call", "fold", *_CARDS.values()),
        _CARDS,
        "",
        "You are player {seat}. Both players put in a chip and draw one of three tokens, unseen by "
        "the other: {J}, {Q} and {K}, where {K} ({king}) beats {Q} ({queen}), and {Q} beats {J} "
        f"({{jack}}). {_ACTIONS}. If nobody gives up, the better token takes all chips.",
        "Two players hold one token each of {J}, {Q} and {K}; {K} beats {Q}, and {Q} beats {J}. A "
        "line is your token, the round, your lead in chips, and what was said in this round. "
        f"{_ACTIONS}. {_LINE}",
    ),
    "Leduc": GameWords(
        ("check", "bet", "call", "raise", "fold", *_CARDS.values()),
        _CARDS,
        "",
        "You are player {seat}. Six tokens, two each of {J}, {Q} and {K}: {K} ({king}) beats {Q} "
        "({queen}), which beats {J} ({jack}). Both players put in a chip and draw one token, "
        "unseen by the other; later one more is opened, and a token of its kind beats all others. "
        f"{_ACTIONS}, {_RAISE}.",
        "Two players hold one token each of two {J}, two {Q} and two {K}; {K} beats {Q}, {Q} beats "
        "{J}, and a token like the open one beats all. A line is your token, the open one (- "
        "before), the chips put in, and what was said, with a / where the token was opened. "
        f"{_ACTIONS}, {_RAISE}. {_LINE}",
    ),
    "TicTacToeEnv": GameWords(
        (),
        {},
        "012345678XO",
        "You are player {seat}; player 0 owns {O}, player 1 owns {X}. There are nine fields in "
        "three rows of three; a free one shows its letter. Take turns to claim a free field by "
        "its letter, such as [{4}]. Three of your fields in a line, also slanting, win.",
        "Nine fields, three rows of three: {X} is yours, {O} the other's, and each free field "
        "shows its letter. Three of yours in a line, also slanting, win. Answer with the letter of "
        "a free field, nothing else.",
    ),
}
"""GameWords by class of the env."""


class NewNames:
    """New names of a game's words, by a seed."""

    def __init__(self, words: GameWords, seed: int) -> None:
        rng = Random(seed)
        first = rng.sample(_CONSONANTS, len(words.named))
        self.new = {
            word: f"{start}{rng.choice(_VOWELS)}{rng.choice(_CONSONANTS)}"
            for word, start in zip(words.named, first, strict=True)
        }
        self.new |= {letter: self.new[word][0].upper() for letter, word in words.initials.items()}
        single = rng.sample(_LETTERS, len(words.letters))
        self.new |= {
            old: new.upper() if old.isupper() else new
            for old, new in zip(words.letters, single, strict=True)
        }
        before, after = ("(?<!Player )", "") if words.letters else (r"\b", r"\b")
        self._old = re.compile(f"{before}({'|'.join(map(re.escape, self.new))}){after}")
        self._back = {new: old for old, new in self.new.items()}
        self._new = re.compile(rf"\b({'|'.join(map(re.escape, self._back))})\b")

    def text(self, text: str) -> str:
        """Return a text of the game in new words."""
        return self._old.sub(lambda found: self.new[found[0]], text)

    def filled(self, text: str, **more: str) -> str:
        """Return a text with the new name of each `{word}`."""
        known = {**self.new, **more}
        return re.sub(r"\{(\w+)\}", lambda found: known[found[1]], text)

    def action(self, action: str) -> str:
        """Return an action in new words as the game's own."""
        return self._new.sub(lambda found: self._back[found[0]], action)

    def moves(self, shares: Probabilities) -> Probabilities:
        """Return probabilities of the game's own moves by their new names."""
        return {self.text(move): share for move, share in shares.items()}


class Relabelled(Environment):
    """A game in new words; `environment_class` makes the class of each seed and game."""

    inner: GameConfig
    words: GameWords
    names: NewNames
    _notice = ""

    def __init__(self, **args: Any) -> None:
        self._env = make_environment(self.inner.model_copy(update={"args": args}))

    @property
    def raw(self) -> Any:
        return self._env.raw

    @property
    def mover(self) -> int:
        return self._env.mover

    def reset(self, seats: int, seed: int) -> None:
        self._env.reset(seats, seed)

    def observe(self) -> Observation:
        seen = self._env.observe()
        return Observation(
            seat=seen.seat,
            rules=self.names.filled(self.words.rules, seat=str(seen.seat)),
            events=[*map(self.names.text, seen.events)],
            board=self.names.text(seen.board),
            notice=self._notice,
        )

    def legal_moves(self) -> list[str]:
        return [*map(self.names.text, self._env.legal_moves())]

    def step(self, action: str) -> EnvStep:
        if action.strip() not in (moves := self.legal_moves()):  # also the game's own words
            self._notice = f"The action must be one of {', '.join(moves)}."
            return EnvStep(over=False, refused=True, reason=self._notice)
        self._notice = ""
        return self._env.step(self.names.action(action))

    def payoffs(self) -> list[float]:
        return self._env.payoffs()

    def scale(self) -> float | None:
        return self._env.scale()

    def whole_state(self) -> str | None:
        return self._env.whole_state()


def environment_class(name: str) -> type[Relabelled]:
    """Return the class of `SEED:ENV`; raises `ConfigError` for another game or a wrong seed."""
    seed, _, env = name.partition(":")
    place = f"relabelled:{name}"
    if not seed.isdigit() or not env:
        raise ConfigError(f"{place}: write relabelled:SEED:ENV, such as relabelled:3:TicTacToe-v0")
    inner = GameConfig(env=env)
    cls = env_class(inner)
    if cls.__name__ not in GAMES:
        raise ConfigError(f"{place}: no other words for it; {nearest(cls.__name__, [*GAMES])}")
    words = GAMES[cls.__name__]
    names = NewNames(words, int(seed))
    own = {"inner": inner, "words": words, "names": names}
    return type("Relabelled", (Relabelled,), {**own, "info": _info(game_info(inner), words, names)})


def _info(own: GameInfo, words: GameWords, names: NewNames) -> GameInfo:
    """Return a game's metadata in new words; without questions, which are in its own."""
    expert, compact, values = own.expert, own.compact, own.action_values
    if expert is not None:
        found = expert
        expert = Expert(
            moves=lambda env: names.moves(found.moves(env)),
            reason=lambda env, move: names.text(found.reason(env, names.action(move))),
        )
    if compact is not None:
        position = compact.position
        compact = Compact(
            names.filled(words.brief), lambda env: names.text(position(env)), compact.fits
        )
    return replace(
        own,
        name=f"{own.name}, relabelled",
        legal_moves=None,
        rules=None,
        expert=expert,
        compact=compact,
        action_values=None if values is None else lambda env: names.moves(values(env)),
        questions=(),
    )
