"""A small game's tree: every position that play can come to, with the probability of each draw.

An env's draws are answered in every possible way, so that a tree needs nothing of a game but its
env.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from unstable.config import ConfigError, GameConfig
from unstable.games.catalog.table import EXACT_GAMES
from unstable.games.chance import all_draws
from unstable.games.game import Game
from unstable.games.services import can_be_solved, game_info
from unstable.types import Observation

MOST_NODES = 200_000
"""Positions of a tree; more take minutes and gigabytes."""
Shown = tuple[object, ...]
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

    Where every seat sees all, positions that are shown alike after as many turns are one, however
    they came about: `max_turns` cuts a game off by its turns, with what the env pays then.
    """
    place = f"games = {config.key}"
    if not can_be_solved(config):
        raise ConfigError(
            f"{place}: is not known as a game that can be solved exactly; these can: {EXACT_GAMES}"
        )
    grower = _Grower(config, most_nodes)
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
        self._is_open = size is not None and size.is_open
        self._most_nodes = most_nodes
        self._numbers: dict[tuple[int, Shown], int] = {}
        self._open: dict[tuple[int, Shown], Node] = {}  # by turns made, after which a cap comes

    def after(self, play: Callable[[], Game], information_sets: tuple[int, ...] = ()) -> Node:
        """The node that `play` leads to: a decision, an end, or what chance makes of it."""
        outcomes = list(all_draws(play))
        if len(outcomes) == 1:
            return self._position(outcomes[0][1], information_sets)
        node = self._count(Node(probabilities=tuple(probability for probability, _ in outcomes)))
        node.children = [self._position(game, information_sets) for _, game in outcomes]
        return node

    def _count(self, node: Node) -> Node:
        self.nodes += 1
        if self.nodes > self._most_nodes:
            raise ConfigError(
                f"games = {self.config.key}: has more than {self._most_nodes:,} positions; give a "
                "smaller variant, such as one hand, or a prompt style that leaves events out"
            )
        return node

    def _position(self, game: Game, information_sets: tuple[int, ...]) -> Node:
        information_sets = information_sets or (-1,) * self.config.seats
        if game.done:
            self.most = max(self.most, *map(abs, game.payoffs))
            return self._count(Node(payoffs=tuple(game.payoffs)))
        observation, seat = game.observe(), game.seat
        shown = as_key(observation)
        if self._is_open:
            if (game.turns, shown) in self._open:
                return self._open[game.turns, shown]
        else:
            number = self._numbers.setdefault((information_sets[seat], shown), len(self._numbers))
            information_sets = _with(information_sets, seat, number)
        node = self._count(
            Node(
                seat=seat,
                actions=tuple(game.legal_moves()),
                observation=observation,
                information_set=information_sets[seat],
            )
        )
        self.shown.setdefault(shown, node)
        self._open[game.turns, shown] = node
        node.children = [
            self.after(lambda action=action: _stepped(game, action), information_sets)  # type: ignore[misc]
            for action in node.actions
        ]
        return node


def _with(numbers: tuple[int, ...], seat: int, number: int) -> tuple[int, ...]:
    return (*numbers[:seat], number, *numbers[seat + 1 :])


def _stepped(game: Game, action: str) -> Game:
    """A copy of the game after a legal action."""
    after = game.copied()
    result = after.step(action)
    if result.invalid:
        raise ConfigError(f"games = {game.config.key}: lists {action} as legal and refuses it")
    return after
