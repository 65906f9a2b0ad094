"""Properties of OpenSpiel's games: whether the tree is small, and whether the text is complete."""

import random
from collections.abc import Callable
from statistics import mean
from typing import Any

MOST = 1_000_000
"""Maximum number of nodes of a small tree, chance nodes included."""
_ROLLOUTS = 100
_LARGE = 30 * MOST  # estimated nodes above which they are not counted
_GAMES = 300  # random games to compare
_KEPT = 3  # histories to follow for each position


def is_small(game: Any, text: Callable[[Any, int], str] | None = None) -> bool:
    """Return whether a game has at most `MOST` histories, or positions if `text` shows all."""
    if text is None and estimated(game) > _LARGE:
        return False
    left, waiting, met = MOST, [game.new_initial_state()], set[tuple[object, ...]]()
    while waiting:
        state = waiting.pop()
        if text is not None:
            if (seen := (state.move_number(), *_read(state, text))) in met:
                continue
            met.add(seen)
        left -= 1
        if left < 0:
            return False
        if not state.is_terminal():
            waiting += [state.child(action) for action in state.legal_actions()]
    return True


def estimated(game: Any) -> float:
    """Estimate a game's histories by random ones (Knuth 1975, Estimating the efficiency of
    backtrack programs, Mathematics of Computation 29): unbiased, but mostly too low. Infinity if a
    single history shows that there are too many.
    """
    rng = random.Random(0)
    found = []
    for _ in range(_ROLLOUTS):
        state, nodes, ways = game.new_initial_state(), 1.0, 1.0
        while not state.is_terminal():
            actions = state.legal_actions()
            ways *= len(actions)
            nodes += ways
            if nodes > _ROLLOUTS * _LARGE:
                return float("inf")
            state.apply_action(rng.choice(actions))
        found.append(nodes)
    return mean(found)


def shows_all(game: Any, text: Callable[[Any, int], str]) -> bool:
    """Return whether positions with equal texts and numbers of moves continue equally at random.

    In Go they may not: positions must not repeat, and a board does not show earlier ones.
    """
    rng = random.Random(0)
    seen: dict[tuple[object, ...], list[Any]] = {}
    for _ in range(_GAMES):
        state = game.new_initial_state()
        while not state.is_terminal():
            if not state.is_chance_node():
                same = seen.setdefault((state.move_number(), _read(state, text)), [])
                if any(_part(other.clone(), state.clone(), text, rng) for other in same):
                    return False
                if len(same) < _KEPT:
                    same.append(state.clone())
            state.apply_action(rng.choice(state.legal_actions()))
    return True


def _part(one: Any, other: Any, text: Callable[[Any, int], str], rng: random.Random) -> bool:
    """Return whether two states come to differ under equal random moves."""
    while _read(one, text) == _read(other, text):
        if one.is_terminal():
            return False
        action = rng.choice(one.legal_actions())
        one.apply_action(action)
        other.apply_action(action)
    return True


def _read(state: Any, text: Callable[[Any, int], str]) -> tuple[object, ...]:
    """Return everything that a tree takes from a state."""
    if state.is_terminal():
        return ("over", *state.returns())
    if state.is_chance_node():
        return ("chance", *state.chance_outcomes())
    return (state.current_player(), text(state, state.current_player()), *state.legal_actions())
