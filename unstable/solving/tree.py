"""A small game's tree: every position that play can come to, with the probability of each draw.

An env's draws are answered in every possible way, so that a tree needs nothing of a game but its
env.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from unstable.config import ConfigError, GameConfig
from unstable.config import shown as shown_text
from unstable.games.chance import all_draws
from unstable.games.game import Game
from unstable.games.services import game_info, why_not_solved
from unstable.solving.chance import all_chance_enumerated, check_open
from unstable.types import Observation

MOST_NODES = 200_000
"""Positions of a tree, unless told otherwise."""
Shown = tuple[object, ...]
Memories = tuple[object, ...]
_WORDS, _ACTIONS = 120, 6  # characters and actions that a message quotes
_TEXTS = ("rules", "board", "notice", "brief", "position")


@dataclass(eq=False, slots=True)
class Node:
    """A position: the game is over, chance decides, or a seat is to move."""

    payoffs: tuple[float, ...] = ()  # native, by seat, where the game is over
    probabilities: tuple[float, ...] = ()  # of the children, where chance decides
    seat: int = -1  # to move, else -1
    actions: tuple[str, ...] = ()  # that are legal, one for each child
    observation: Observation | None = None  # what the seat is shown
    information_set: int = -1  # number of what the seat has been shown; -1: the game is open
    children: list["Node"] = field(default_factory=list)

    @property
    def shown(self) -> Observation:
        """What the seat to move is shown; no other position has any."""
        assert self.observation is not None
        return self.observation

    @property
    def key(self) -> Shown:
        """What a table of the policy is asked by, where a seat is to move."""
        return as_key(self.shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All of a game from its root, and what a forfeit costs."""

    root: Node
    seats: int
    most: float  # that a seat can win or lose
    nodes: int
    decisions: tuple[Node, ...]  # one for each observation that a seat to move can be shown

    def parents_first(self) -> list[Node]:
        """All positions, each once, after those that lead to it."""
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


def grow(config: GameConfig, most_nodes: int = MOST_NODES) -> Tree:
    """The tree of a game; raises `ConfigError` for one that cannot be solved exactly.

    Where every seat sees all, positions that are shown alike after as many turns are one, however
    they came about: `max_turns` cuts a game off by its turns, with what the env pays then.
    """
    place = f"games = {config.key}"
    if (why := why_not_solved(config)) is not None:
        raise ConfigError(f"{place}: {why}")
    with all_chance_enumerated(config):
        grower = _Grower(config, most_nodes)
        if grower.is_open:
            check_open(config)
        root = grower.after(lambda: Game(config, seed=0))
    if not grower.most:
        raise ConfigError(
            f"{place}: max_turns = {config.max_turns} leaves no game in which anybody wins "
            "something, so that nothing can be exploited; set it to the longest game's turns"
        )
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
        size = game_info(config).small_tree
        self.is_open = size is not None and size.is_open
        self._most_nodes = most_nodes
        self._numbers: dict[tuple[object, Shown], int] = {}
        self._open: dict[tuple[int, Shown], Node] = {}  # by turns made, after which a cap comes

    def after(self, play: Callable[[], Game], memories: Memories = ()) -> Node:
        """The node that `play` leads to: a decision, an end, or what chance makes of it.

        `memories`: by seat, the number of what it was shown last, and what it did then.
        """
        outcomes = list(all_draws(play))
        if len(outcomes) == 1:
            return self._position(outcomes[0][1], memories)
        node = self._count(Node(probabilities=tuple(probability for probability, _ in outcomes)))
        node.children = [self._position(game, memories) for _, game in outcomes]
        return node

    def _count(self, node: Node) -> Node:
        self.nodes += 1
        if self.nodes > self._most_nodes:
            raise ConfigError(
                f"games = {self.config.key}: has more than {self._most_nodes:,} positions, which "
                "eval.exploitability.nodes (exploit --nodes) allows; raise it, or give a smaller "
                "variant, such as one hand, or a prompt style that leaves events out"
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
                _with(memories, seat, (number, action)),
            )
            for action in actions
        ]
        return node

    def _in_order(self, actions: tuple[str, ...], known: Node) -> tuple[str, ...]:
        """The actions as at a position that is shown alike, where they must be the same."""
        if set(actions) == set(known.actions):
            return known.actions
        seen = _quoted(known.shown)
        raise ConfigError(
            f"games = {self.config.key}: seat {known.seat} is shown {seen} in "
            f"positions with different legal actions, {_listed(known.actions)} and "
            f"{_listed(actions)}; a position must show the seat all that decides what it may do, "
            "such as its own hand or its own moves until now: in the compact form's position, or "
            "in the board and the events of other prompt styles"
        )


def _with(memories: Memories, seat: int, memory: object) -> Memories:
    return (*memories[:seat], memory, *memories[seat + 1 :])


def in_words(observation: Observation) -> str:
    """What is shown, as far as it changes from position to position, in one line."""
    changing = [*observation.events, observation.board]
    return " ".join((observation.position or " ".join(changing)).split())


def _quoted(observation: Observation) -> str:
    text = in_words(observation)
    return shown_text(text if len(text) <= _WORDS else f"...{text[-_WORDS:]}")


def _listed(actions: tuple[str, ...]) -> str:
    more = f" and {len(actions) - _ACTIONS} more" if len(actions) > _ACTIONS else ""
    return " ".join(actions[:_ACTIONS]) + more


def _stepped(after: Game, action: str) -> Game:
    """The game after a legal action."""
    result = after.step(action)
    if result.invalid:
        raise ConfigError(f"games = {after.config.key}: lists {action} as legal and refuses it")
    return after
