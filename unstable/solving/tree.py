"""A game solved exactly: every position that play can come to, with the chance of what is drawn.

For exact answers about small games. An env's draws from `random` are answered in every possible
way, so that the tree needs nothing of a game but its env.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from unstable.config import ConfigError, GameConfig
from unstable.games import services
from unstable.games.game import Game
from unstable.types import Observation

MOST_NODES = 200_000
"""Positions of a tree; more take minutes and gigabytes."""
Shown = tuple[object, ...]
_TEXTS = ("rules", "board", "notice", "brief", "position")
_shared: Any = random._inst


@dataclass(eq=False, slots=True)
class Node:
    """A position: the game is over, chance decides, or a seat is to move."""

    payoffs: tuple[float, ...] = ()  # native, by seat, where the game is over
    chances: tuple[float, ...] = ()  # of the children, where chance decides
    seat: int = -1  # to move, else -1
    actions: tuple[str, ...] = ()  # that are legal, one for each child
    observation: Observation | None = None  # what the seat is shown
    memory: int = -1  # number of what the seat has been shown until now: its information set
    children: list["Node"] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All of a game from its root, and what a forfeit costs."""

    root: Node
    seats: int
    most: float  # that a seat can win or lose
    nodes: int
    decisions: tuple[Node, ...]  # one for each observation that a seat to move can be shown


def grow(config: GameConfig, most_nodes: int = MOST_NODES) -> Tree:
    """The tree of a game; raises `ConfigError` for one that cannot be solved exactly.

    Where every seat sees all, positions that are shown alike are one, however they came about.
    """
    place = f"games = {config.key}"
    if not services.can_be_solved(config):
        raise ConfigError(
            f"{place}: is not known as a game that can be solved exactly; these can: "
            f"{services.EXACT_GAMES}"
        )
    grower = _Grower(config, most_nodes)
    root = grower.after(lambda: Game(config, seed=0))
    return Tree(
        root=root,
        seats=config.seats,
        most=grower.most,
        nodes=grower.nodes,
        decisions=tuple(grower.shown.values()),
    )


def as_key(observation: Observation) -> Shown:
    """The observation as what a table can be asked for."""
    seat, events = observation.seat, tuple(observation.events)
    return seat, events, *(getattr(observation, name) for name in _TEXTS)


class _Grower:
    """Grows a tree, depth first."""

    def __init__(self, config: GameConfig, most_nodes: int) -> None:
        self.config = config
        self.nodes = 0
        self.most = 0.0
        self.shown: dict[Shown, Node] = {}
        self._is_open = services.is_open(config)
        self._most_nodes = most_nodes
        self._memories: dict[tuple[int, Shown], int] = {}

    def after(self, play: Callable[[], Game], memories: tuple[int, ...] = ()) -> Node:
        """The node that `play` leads to: a decision, an end, or what chance makes of it."""
        ways = list(_ways(play))
        if len(ways) == 1:
            return self._position(ways[0][1], memories)
        node = self._count(Node(chances=tuple(chance for chance, _ in ways)))
        node.children = [self._position(game, memories) for _, game in ways]
        return node

    def _count(self, node: Node) -> Node:
        self.nodes += 1
        if self.nodes > self._most_nodes:
            raise ConfigError(
                f"games = {self.config.key}: has more than {self._most_nodes:,} positions; give a "
                "smaller variant, such as one hand, or a prompt style that leaves events out"
            )
        return node

    def _position(self, game: Game, memories: tuple[int, ...]) -> Node:
        memories = memories or (-1,) * self.config.seats
        if game.done:
            self.most = max(self.most, *map(abs, game.payoffs))
            return self._count(Node(payoffs=tuple(game.payoffs)))
        observation, seat = game.observe(), game.seat
        shown = as_key(observation)
        if self._is_open:
            if shown in self.shown:
                return self.shown[shown]
        else:
            memory = (memories[seat], shown)
            number = self._memories.setdefault(memory, len(self._memories))
            memories = (*memories[:seat], number, *memories[seat + 1 :])
        node = self._count(
            Node(
                seat=seat,
                actions=tuple(game.legal_moves()),
                observation=observation,
                memory=memories[seat],
            )
        )
        self.shown.setdefault(shown, node)
        node.children = [
            self.after(lambda action=action: _stepped(game, action), memories)  # type: ignore[misc]
            for action in node.actions
        ]
        return node


def _stepped(game: Game, action: str) -> Game:
    """A copy of the game after a legal action."""
    after = game.copied()
    result = after.step(action)
    if result.invalid:
        raise ConfigError(f"games = {game.config.key}: lists {action} as legal and refuses it")
    return after


class _UndrawnError(BaseException):
    """A draw that the script does not answer; passes all that catches a game's errors."""

    def __init__(self, size: int) -> None:
        self.size = size


def _ways(play: Callable[[], Game]) -> Iterator[tuple[float, Game]]:
    """Everything that `play` may lead to, with its chance, by every answer to every draw."""
    scripts: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while scripts:
        script, chance = scripts.pop()
        try:
            with _answered(script):
                game = play()
        except _UndrawnError as draw:
            share = chance / draw.size
            scripts += [((*script, answer), share) for answer in reversed(range(draw.size))]
        else:
            yield chance, game


@contextlib.contextmanager
def _answered(script: tuple[int, ...]) -> Iterator[None]:
    """Draws from `random` meanwhile are answered by the script, one after another.

    All of its functions for whole numbers, choices and shuffles draw by one method.
    """
    answers = iter(script)

    def draw(size: int) -> int:
        if size == 1:
            return 0
        for answer in answers:
            return answer
        raise _UndrawnError(size)

    _shared._randbelow = draw
    try:
        yield
    finally:
        del _shared._randbelow
