"""Which of the oldest items are left out: half of the room at once, and by the items alone."""

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.rows import every_row
from unstable.prompts.cutting import cut_points, left_out

SIZES = st.lists(st.integers(1, 20), max_size=30)


@every_row(
    "sizes, step, points",
    ([], 5, [0]),
    ([1], 5, [0, 1]),
    ([4] * 6, 8, [0, 2, 4, 6]),
    ([3] * 6, 8, [0, 2, 5, 6]),
    ([1, 40, 1], 8, [0, 1, 3]),
    ([2, 2, 2], 1, [0, 1, 2, 3]),
)
def test_cut_points(sizes, step, points):
    assert cut_points(sizes, step) == points


@given(SIZES, SIZES, st.integers(1, 40))
def test_cut_points_are_stable_as_items_are_added(sizes, added, step):
    before, after = cut_points(sizes, step), cut_points(sizes + added, step)
    assert after[: len(before) - 1] == before[:-1]
    assert before[0] == 0 and before[-1] == len(sizes)
    assert before == sorted(set(before))


@given(SIZES, st.integers(2, 60), st.integers(0, 10))
def test_cutting_clears_half_of_the_room(sizes, room, less):
    """Cutting clears half of the room, also if a larger board, for example, takes `less` of it."""
    has = max(0, room - less)
    count = left_out(sizes, room, lambda count: sum(sizes[count:]) <= has)
    left = sum(sizes[count:])
    assert left <= has
    if count == 0:
        return
    assert sum(sizes) > has
    assert left + max(1, room // 2) + max(sizes) > has  # cuts at most a step more than needed


def test_newest_items_stay_if_all_would_be_cut():
    assert left_out([1, 40, 1], 16, lambda count: sum([1, 40, 1][count:]) <= 16) == 2
    assert left_out([40], 16, lambda count: count == 1) == 1
