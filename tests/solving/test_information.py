"""Information in moves: the mutual information, less what the legal moves alone tell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.trees import tree_of, uniform
from unstable.solving.best_response import information_of
from unstable.types.information import move_information

ALL = st.lists(st.floats(0.1, 10), min_size=2, max_size=5)


@given(st.integers(2, 5), st.data())
def test_with_equal_legal_moves_it_is_mutual_information(moves: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    each = st.lists(st.floats(0.0, 5.0), min_size=moves, max_size=moves)
    joint = np.array(data.draw(st.lists(each, min_size=count, max_size=count))) + 1e-3
    joint /= joint.sum()
    weights_P = joint.sum(1)
    owners_M, moves_M = np.repeat(np.arange(count), moves), np.tile(np.arange(moves), count)
    found = move_information(40 * joint.ravel(), owners_M, moves_M)
    independent = np.outer(weights_P, joint.sum(0))
    assert found == pytest.approx(float((joint * np.log(joint / independent)).sum()), abs=1e-9)


@given(ALL, st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=6))
def test_strengths_among_legal_moves_tell_nothing(
    strengths: list[float], legal: list[set[int]]
) -> None:
    sets = [sorted({move % len(strengths) for move in each}) for each in legal]
    owners_M = np.repeat(np.arange(len(sets)), list(map(len, sets)))
    moves_M = np.concatenate(sets)
    raised = np.array(strengths, np.float64)[moves_M]
    shares_M = raised / np.bincount(owners_M, raised)[owners_M]
    found = move_information(shares_M, owners_M, moves_M)
    assert found == pytest.approx(0.0, abs=1e-5)


def test_information_of_kuhn_poker_by_hand() -> None:
    """A policy that bets and calls with the king alone; all others check and fold."""
    tree = tree_of("kuhn")
    assert information_of(tree, uniform(tree)) == pytest.approx(0.0, abs=1e-12)
    policy = {
        node.key: {
            each: float((each in ("[bet]", "[call]")) == node.shown.position.startswith("K"))
            for each in node.actions
        }
        for node in tree.decisions
    }
    # Of 7/3 turns per game, 5/3 are between check and bet, and 2/3 bets; all others fold.
    entropy = -0.4 * np.log(0.4) - 0.6 * np.log(0.6)
    assert information_of(tree, policy) == pytest.approx(5 / 7 * entropy)
    by_set = {
        node.information_set: policy[node.key] for node in tree.parents_first() if node.seat >= 0
    }
    assert information_of(tree, by_set) == pytest.approx(5 / 7 * entropy)
