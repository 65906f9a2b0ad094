"""vLLM's start: sizes of CUDA graphs, and phases."""

from itertools import pairwise

from unstable.engines.vllm.core import graph_sizes, phases_of
from unstable.engines.vllm.needs import STEP_TOKENS

LORA_COUNTS = 6
"""Numbers of LoRAs that vLLM 0.24 captures graphs for with nine slots: 0, 1, 2, 4, 8 and 10."""


def test_graphs_of_384_requests_with_nine_slots() -> None:
    sizes = graph_sizes(384)
    without_prompts = [size for size in sizes if size <= 384]
    assert LORA_COUNTS * (len(sizes) + len(without_prompts)) == 162  # of vLLM's own sizes 564


def test_every_step_up_to_twice_the_requests_has_a_graph_not_much_larger() -> None:
    for max_requests in range(1, 4097):
        sizes = graph_sizes(max_requests)
        assert sizes == sorted(set(sizes)) and sizes[0] == 1 and max_requests in sizes
        assert 2 * max_requests <= sizes[-1] <= STEP_TOKENS
        assert len(sizes) <= 24
        assert all(after <= 2 * before or after <= 16 for before, after in pairwise(sizes))


def test_phases_are_read_from_the_output() -> None:
    output = """(Worker pid=15000) INFO [default_loader.py:501] Loading weights took 1.72 seconds
    INFO [monitor.py:44] torch.compile took 20.15 s in total
    INFO [gpu_model_runner.py:6582] Graph capturing finished in 16 secs, took 0.30 GiB
    INFO [core.py:402] init engine (profile, create kv cache, warmup model) took 43.90 s"""
    assert phases_of(output) == {
        "weights": 1.72,
        "compiling": 20.15,
        "graphs": 16.0,
        "profiling, cache and warm-up, with graphs": 43.9,
    }
    assert phases_of("") == {}
