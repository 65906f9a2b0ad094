"""What OpenSpiel does not say of a game: whether its tree is small, and whether its text is all."""

import random
from collections.abc import Callable
from statistics import mean
from typing import Any

MOST = 1_000_000
"""Nodes of a tree, chance's among them, that are counted at most."""
_ROLLOUTS = 100
_LARGE = 30 * MOST  # an estimate from which on nothing is counted
_GAMES = 300  # that are compared, of random moves
_KEPT = 3  # ways to one position that are followed


def is_small(game: Any, text: Callable[[Any, int], str] | None = None) -> bool:
    """Whether it has at most `MOST` histories; or, where seats see all in `text`, positions."""
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
    """Histories of a game, by random ones (Knuth 1975, Estimating the efficiency of backtrack
    programs, Mathematics of Computation 29): right on average, mostly too low. Infinity where a
    single one settles that there are too many.
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
    """Whether positions that read alike after as many moves go on alike, in random play.

    In Go they need not: earlier positions must not come again, and no board shows these.
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
    """Whether two states come to read differently, by the same random moves."""
    while _read(one, text) == _read(other, text):
        if one.is_terminal():
            return False
        action = rng.choice(one.legal_actions())
        one.apply_action(action)
        other.apply_action(action)
    return True


def _read(state: Any, text: Callable[[Any, int], str]) -> tuple[object, ...]:
    """All that a tree takes from a state."""
    if state.is_terminal():
        return ("over", *state.returns())
    if state.is_chance_node():
        return ("chance", *state.chance_outcomes())
    return (state.current_player(), text(state, state.current_player()), *state.legal_actions())
