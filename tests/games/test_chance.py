"""Test that CPython still has the internals that `games/chance.py` uses."""

import random
from math import factorial

import pytest

from tests.helpers.rows import every_row
from unstable.games import chance


def test_chance_swaps_bytes_of_shared_generator() -> None:
    """Otherwise games stay correct, but each swap takes thirty times as long: update chance.py."""
    assert chance._is_as_in_cpython()
    generator = random.Random(3)
    generator.gauss(0, 1)
    raw, gauss = chance._read(generator)
    assert isinstance(raw, bytes) and gauss is not None
    for name in ("random", "randrange", "randint", "choice", "shuffle", "sample", "gauss"):
        assert getattr(random, name).__self__ is chance._shared


def shuffled() -> tuple[int, ...]:
    items = [0, 1, 2, 3]
    random.shuffle(items)
    return tuple(items)


@every_row(
    "draw, number",
    (lambda: random.randrange(5), 5),
    (lambda: random.randint(1, 6), 6),
    (lambda: random.choice("abc"), 3),
    (shuffled, factorial(4)),
    (lambda: tuple(random.sample(range(5), 2)), 20),
    (lambda: chance.draw([1, 2, 3]), 3),
    (lambda: (random.randrange(2), random.choice("ab")), 4),
)
def test_integers_choices_and_shuffles_share_one_draw_method(draw, number):
    found = list(chance.all_draws(draw))
    assert len(found) == len({result for _, result in found}) == number
    assert [probability for probability, _ in found] == pytest.approx([1 / number] * number)
    assert "_randbelow" not in vars(random._inst)
