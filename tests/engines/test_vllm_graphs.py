"""Sizes of vLLM's CUDA graphs."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from unstable.engines.vllm.core import graph_sizes
from unstable.engines.vllm.needs import STEP_TOKENS

LORA_COUNTS = 6
"""Numbers of LoRAs that vLLM 0.24 captures graphs for with nine slots: 0, 1, 2, 4, 8 and 10."""


def test_graphs_of_384_requests_with_nine_slots() -> None:
    sizes = graph_sizes(384)
    without_prompts = [size for size in sizes if size <= 384]
    assert LORA_COUNTS * (len(sizes) + len(without_prompts)) == 162  # of vLLM's own sizes 564


@given(max_requests=st.integers(1, 4096))
def test_every_step_up_to_twice_the_requests_has_a_graph_not_much_larger(
    max_requests: int,
) -> None:
    sizes = graph_sizes(max_requests)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and max_requests in sizes
    assert 2 * max_requests <= sizes[-1] <= STEP_TOKENS
    assert len(sizes) <= 24
    assert all(after <= 2 * before or after <= 8 for before, after in pairwise(sizes))
