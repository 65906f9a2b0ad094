"""Trees of small games: every position that play can reach, with the probability of each draw.

The tree enumerates all outcomes of an env's draws, so that it needs only the env of a game.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from unstable.config import ConfigError, GameConfig
from unstable.config import shown as shown_text
from unstable.games.chance import scripted_draws
from unstable.games.game import Game
from unstable.games.services import game_info, why_not_solved
from unstable.solving.chance import all_chance_enumerated, check_open
from unstable.types import Observation

MOST_NODES = 200_000
"""Default limit for the number of positions in a tree."""
Shown = tuple[object, ...]
Memories = tuple[object, ...]
_WORDS, _ACTIONS = 120, 6  # maximum characters and actions quoted in a message
_TEXTS = ("rules", "board", "notice", "brief", "position")


@dataclass(eq=False, slots=True)
class Node:
    """A position: the end of a game, a chance node, or a decision of a seat."""

    payoffs: tuple[float, ...] = ()  # by seat, in the game's unit; only at a game's end
    probabilities: tuple[float, ...] = ()  # probability per child; only at a chance node
    draws: tuple[tuple[int, ...], ...] = ()  # per child of a chance node, as `chance.noted` lists
    seat: int = -1  # seat to move, else -1
    actions: tuple[str, ...] = ()  # legal action per child
    observation: Observation | None = None  # observation of the seat to move
    information_set: int = -1  # number of the set; -1 in games of perfect information
    children: list["Node"] = field(default_factory=list)

    @property
    def shown(self) -> Observation:
        """Observation of the seat to move; other positions have none."""
        assert self.observation is not None
        return self.observation

    @property
    def key(self) -> Shown:
        """Key of the position in a policy's table; only positions with a seat to move have one."""
        return as_key(self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A game's positions from its root, and the cost of a forfeit."""

    root: Node
    seats: int
    most: float  # maximum payoff or loss of a seat
    nodes: int
    decisions: tuple[Node, ...]  # one per distinct observation of a seat to move

    def forfeit(self, seat: int) -> tuple[float, ...]:
        """Return the payoffs of a forfeit by this seat, for each seat."""
        gain = self.most / (self.seats - 1) if self.seats > 1 else 0.0
        return tuple(-self.most if each == seat else gain for each in range(self.seats))

    def parents_first(self) -> list[Node]:
        """Return all positions in topological order: parents before children."""
        found: list[Node] = []
        seen: set[int] = set()

        def visit(node: Node) -> None:
            if id(node) not in seen:
                seen.add(id(node))
                for child in node.children:
                    visit(child)
                found.append(node)

        visit(self.root)
        return found[::-1]


def grow(config: GameConfig, most_nodes: int = MOST_NODES, most_s: float = math.inf) -> Tree:
    """Grow the tree of a game; raises `ConfigError` if it cannot be solved exactly.

    It also raises if the tree takes more than `most_s` seconds of this process's CPU time.
    In a game of perfect information, equal observations after equally many turns share one node.
    Turns count because `max_turns` truncates games.
    """
    place = f"games = {config.key}"
    if (why := why_not_solved(config)) is not None:
        raise ConfigError(f"{place}: {why}")
    with all_chance_enumerated(config):
        grower = _Grower(config, most_nodes, time.process_time() + most_s)
        if grower.is_open:
            check_open(config)
        root = grower.after(lambda: Game(config, seed=0))
    if not grower.most:
        raise ConfigError(
            f"{place}: max_turns = {config.max_turns}: no game ends with a payoff other than 0, "
            "so there is nothing to exploit; set it to the longest game's turns"
        )
    return Tree(
        root=root,
        seats=config.seats,
        most=grower.most,
        nodes=grower.nodes,
        decisions=tuple(grower.shown.values()),
    )


def as_key(observation: Observation) -> Shown:
    """Return the hashable key of an observation."""
    seat, events = observation.seat, tuple(observation.events)
    return seat, events, *(getattr(observation, name) for name in _TEXTS)


class _Grower:
    """Grower of a tree, depth first."""

    def __init__(self, config: GameConfig, most_nodes: int, until: float) -> None:
        self.config = config
        self.nodes = 0
        self.most = 0.0
        self.shown: dict[Shown, Node] = {}
        size = game_info(config).small_tree
        self.is_open = size is not None and size.is_open
        self._most_nodes, self._until = most_nodes, until
        self._numbers: dict[tuple[object, Shown], int] = {}
        self._open: dict[tuple[int, Shown], Node] = {}  # by number of turns: max_turns truncates

    def after(self, play: Callable[[], Game], memories: Memories = ()) -> Node:
        """Return the node that `play` leads to: a decision, the end of a game, or a chance node.

        `memories` has each seat's last information set and action, or None before its first one.
        """
        draws, probabilities, games = zip(*scripted_draws(play), strict=True)
        if len(games) == 1:
            return self._position(games[0], memories)
        node = self._count(Node(probabilities=probabilities, draws=draws))
        node.children = [self._position(game, memories) for game in games]
        return node

    def _count(self, node: Node) -> Node:
        self.nodes += 1
        if time.process_time() > self._until:
            raise ConfigError(f"games = {self.config.key}: its tree takes too long; enlarge most_s")
        if self.nodes > self._most_nodes:
            raise ConfigError(
                f"games = {self.config.key}: has more than {self._most_nodes:,} positions, the "
                "limit eval.exploitability.nodes (exploit --nodes); raise the limit, or use a "
                "smaller variant, such as one hand, or a prompt style without events"
            )
        return node

    def _position(self, game: Game, memories: Memories) -> Node:
        if game.done:
            self.most = max(self.most, *map(abs, game.payoffs))
            return self._count(Node(payoffs=tuple(game.payoffs)))
        observation, seat = game.observe(), game.seat
        shown, actions = as_key(observation), tuple(game.legal_moves())
        if (known := self.shown.get(shown)) is not None:
            actions = self._in_order(actions, known)
        if self.is_open and (game.turns, shown) in self._open:
            return self._open[game.turns, shown]
        memories, number = memories or (None,) * self.config.seats, -1
        if not self.is_open:
            number = self._numbers.setdefault((memories[seat], shown), len(self._numbers))
        node = self._count(
            Node(seat=seat, actions=actions, observation=observation, information_set=number)
        )
        self.shown.setdefault(shown, node)
        self._open[game.turns, shown] = node
        copy_of = game.copies()
        node.children = [
            self.after(
                lambda action=action: _stepped(copy_of(), action),  # type: ignore[misc]
                (*memories[:seat], (number, action), *memories[seat + 1 :]),
            )
            for action in actions
        ]
        return node

    def _in_order(self, actions: tuple[str, ...], known: Node) -> tuple[str, ...]:
        """Return the actions in the order of `known`, a position with an equal observation."""
        if set(actions) == set(known.actions):
            return known.actions
        text = in_words(known.shown)
        seen = shown_text(text if len(text) <= _WORDS else f"...{text[-_WORDS:]}")
        raise ConfigError(
            f"games = {self.config.key}: seat {known.seat} has the same observation, {seen}, in "
            f"positions with different legal actions, {_listed(known.actions)} and "
            f"{_listed(actions)}; show the seat everything that determines its legal actions, "
            "such as its own hand or its own moves so far: in `position` for the compact prompt "
            "style, or in `board` and `events` for other prompt styles"
        )


def in_words(observation: Observation) -> str:
    """Return the parts of an observation that change between positions, in one line."""
    changing = [*observation.events, observation.board]
    return " ".join((observation.position or " ".join(changing)).split())


def _listed(actions: tuple[str, ...]) -> str:
    more = f" and {len(actions) - _ACTIONS} more" if len(actions) > _ACTIONS else ""
    return " ".join(actions[:_ACTIONS]) + more


def _stepped(after: Game, action: str) -> Game:
    """Return the game after a legal action; raises `ConfigError` if the env refuses it."""
    result = after.step(action)
    if result.invalid:
        raise ConfigError(f"games = {after.config.key}: rejects {action}, which it lists as legal")
    return after
