"""A plan for hypothetical machines, and its estimated throughput per hour.

Sizes and placement are the project's own plan; times are estimates from the constants below, which
are not measured on a GPU unless they say so.

Run: python -m bench.capacity --machine 8xh100 --nodes 4 --config qwen3_24gb
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench import parser
from unstable.cli import parse_options
from unstable.config import ConfigError, RunConfig, load, nearest, shown
from unstable.engines.kinds import NEEDS
from unstable.models.shape import read_shape
from unstable.models.sizes import ModelShape
from unstable.planning.case import TYPICAL_LENGTH
from unstable.planning.machine import BFLOAT16_SINCE, GPU, Machine, together
from unstable.planning.memory import DTYPE_BYTES, FP32, cache_bytes, weight_bytes
from unstable.planning.placing import GAME_TURNS, games_at_once
from unstable.planning.plan import Plan, plan

MIB, GB = 2**20, 1_000_000_000
ANSWER_LENGTH = 0.4
"""Length of a typical answer relative to `sampling.max_tokens`: an estimate."""
STEP_S, REQUEST_S = 4e-3, 33e-6
"""Seconds of vLLM's own CPU time per step, and per request in it: 16.6 ms at 384 requests were
measured (vLLM 0.24, SmolLM2-135M, one H200, log-probabilities on)."""
BANDWIDTH_USED = 0.8
"""Share of a GPU's bandwidth that an engine uses for weights and cache: an estimate."""
DENSE = 2
"""Number of times that a product writes or reads the dense weights of a quantized layer."""
MATMUL_USED = 0.66
"""Share of a GPU's FLOP/s that a learner's products use: an estimate; a bare product was measured
at 790 of 989 TFLOP/s on an H200."""
PASSES = 92
"""Number of times that a learner's norms, rotary embeddings and activations read or write a layer's
hidden and intermediate values: an estimate. On an H200, 16,384 tokens of Qwen3-1.7B took 220 ms
with transformers' norms, which is 141; torch's norms read and write 49 less (`bench.kernels`)."""
OTHER = 1.16
"""Estimated factor for attention and gaps between kernels."""
LAUNCH_S = 1.3e-3
"""Seconds to launch a layer's kernels in one forward and backward pass: 170 kernels per layer."""
PASS_TOKENS = 16_384
"""Tokens of a micro-batch without a bound."""
SHARED = 2
"""Estimated slowdown of an engine and a learner that share a GPU, both busy."""
DRIVER_S = 0.16e-3
"""Seconds of the driver's thread per finished game: 160 us were measured (docs/benchmarks.md)."""
NETWORK = 1.25e9
"""Bytes per second between two nodes: 10 Gbit/s, the least that a GPU cluster has."""


class Card(NamedTuple):
    """A kind of GPU. `memory_bytes` are as NVML counts them."""

    name: str
    memory_bytes: int
    compute: float  # CUDA compute capability
    flops: float  # per second, dense bfloat16
    bandwidth: float  # bytes per second of its memory


CARDS: Mapping[str, Card] = {
    "b200": Card("NVIDIA B200", 183_359 * MIB, 10.0, 2250e12, 8.0e12),
    "h200": Card("NVIDIA H200", 143_771 * MIB, 9.0, 989e12, 4.8e12),
    "h100": Card("NVIDIA H100", 81_559 * MIB, 9.0, 989e12, 3.35e12),
    "a100": Card("NVIDIA A100", 81_920 * MIB, 8.0, 312e12, 2.0e12),
    "l40s": Card("NVIDIA L40S", 46_068 * MIB, 8.9, 362e12, 0.86e12),
    "rtx4090": Card("NVIDIA GeForce RTX 4090", 24_564 * MIB, 8.9, 165e12, 1.01e12),
    "rtx3090": Card("NVIDIA GeForce RTX 3090", 24_576 * MIB, 8.6, 71e12, 0.94e12),
    "l4": Card("NVIDIA L4", 23_034 * MIB, 8.9, 121e12, 0.3e12),
}
"""GPUs by their names in `--machine`, from their data sheets."""
_NAME = re.compile(r"(?:(\d{1,3})x)?(?:(\d{1,4})gb|(\w+))", re.ASCII)
_TAKEN = 500_000_000
"""Bytes of a GPU that its driver reserves."""
_CUDA = "13.0"
_PACKAGES = ("torch", "vllm", "vllm-bnb-plugin", "torchao", "bitsandbytes")
"""Packages reported with the version `_CUDA`, newer than any required one."""


def machine_named(text: str) -> Machine:
    """Return the idle machine of a name (h200, 8xh100, 4x24gb), with all packages of a run."""
    found = _NAME.fullmatch(text.lower())
    if found is None or (found[3] and found[3] not in CARDS):
        hint = nearest(found[3] if found and found[3] else "", list(CARDS))
        raise ConfigError(
            f"--machine = {shown(text)}: write [COUNTx]CARD such as 8xh100 or 4x24gb; {hint}"
        )
    count, size = int(found[1] or 1), int(found[2] or 0) * GB
    card = CARDS[found[3]] if found[3] else Card(f"a card of {found[2]} GB", size, 8.0, 0, 0)
    if not count or not card.memory_bytes:
        raise ConfigError(f"--machine = {shown(text)} has no card; give at least one, of 1 GB")
    # Cores and memory per GPU, of a server or a workstation.
    cores, memory = (16, 128 * GB) if card.memory_bytes >= 40 * GB else (8, 32 * GB)
    gpu = GPU(
        id="0",
        name=card.name,
        total_bytes=card.memory_bytes,
        free_bytes=card.memory_bytes - _TAKEN,
        bfloat16=card.compute >= BFLOAT16_SINCE,
    )
    return Machine(
        cores=count * cores,
        memory_bytes=count * memory,
        free_bytes=count * memory,
        bfloat16=True,
        packages=dict.fromkeys(_PACKAGES, _CUDA),
        torch_cuda=_CUDA,
        gpus=tuple(replace(gpu, id=str(index)) for index in range(count)),
        driver_cuda=_CUDA,
    )


def nodes_named(text: str, nodes: int) -> list[Machine]:
    """Return `nodes` equal machines of a name."""
    machine = machine_named(text)
    if nodes == 1:
        return [machine]
    return [replace(machine, node=f"node-{number + 1}") for number in range(nodes)]


def card_like(name: str, memory_bytes: int) -> Card:
    """Return the GPU of that name, or else one with about that much memory."""
    words = set(re.split(r"[\s-]+", name))
    for card in CARDS.values():
        if {*card.name.split()[1:]} <= words:
            return card
    sizes = {"rtx3090": 30e9, "l40s": 60e9, "a100": 100e9, "h200": math.inf}
    return CARDS[next(word for word, most in sizes.items() if memory_bytes <= most)]


def read_bytes(shape: ModelShape, dtype: str, quantize: str) -> int:
    """Count the bytes of the base that a pass reads.

    Quantized layers add their dense copies, which are written and read.
    """
    weights = weight_bytes(shape, dtype, quantize)
    if quantize == "none":
        return weights
    return weights + DENSE * DTYPE_BYTES[dtype] * shape.linear_parameters


def step_s(
    shape: ModelShape,
    dtype: str,
    card: Card,
    weights: int,
    requests: float,
    length: int,
    engines: int,
) -> float:
    """Estimate the seconds of an engine's step, which gives each request a token.

    The step reads `weights` bytes of weights; `engines` share the GPU.
    """
    read = weights + requests * length * cache_bytes(shape, dtype)
    return STEP_S + requests * REQUEST_S + engines * read / (BANDWIDTH_USED * card.bandwidth)


def token_s(shape: ModelShape, card: Card) -> float:
    """Estimate a learner rank's seconds per token: 4 operations per weight, 6 in the head."""
    head = shape.hidden * shape.vocabulary
    products = (4 * shape.linear_parameters + 6 * head) / (MATMUL_USED * card.flops)
    values = 2 * shape.layers * (shape.hidden + shape.intermediate)
    return OTHER * (products + PASSES * values / card.bandwidth)


def typical_length(config: RunConfig, shape: ModelShape) -> int:
    """Return the tokens of a typical prompt and completion together."""
    asked = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    return max(1, int(TYPICAL_LENGTH * min(asked, shape.max_length)))


def played_turns(config: RunConfig) -> float:
    """Count the turns that engines answer per update, including evaluations."""
    draw, judged = config.opponents.draw, config.eval
    fixed = draw.fixed * bool(config.opponents.fixed)
    games = (draw.self + draw.past + fixed) or 1.0
    trained, played = 1 - (draw.past + fixed) / games / 2, 1 - fixed / games / 2
    kinds = len(config.games) * len(judged.opponents) * len(judged.temperature)
    others = judged.games * kinds / judged.every if judged.every else 0.0
    return config.learner.batch_size * played / trained + others * GAME_TURNS / 2


class Capacity(NamedTuple):
    """Estimates of a plan for GPUs."""

    play_s: float  # per update
    learn_s: float
    games: float  # in flight on all actors
    places: int  # most games in flight
    games_s: float  # finished training games per second
    updates_h: float
    bound: str
    driver: float  # utilization of its thread
    publish_bytes: int  # sent to each node per update
    publish_s: float  # to all nodes except the driver's, sequentially

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the estimates as labeled text."""
        yield "pace", f"playing {self.play_s:.1f} s, learning {self.learn_s:.1f} s per update"
        if self.games < self.places / 2:
            more = self.places / self.games
            places = f"{self.games:,.0f} of {self.places:,} places have a game"
            yield "", f"{places}; learner.batch_size x {more:.1f} would fill them"
        rate = f"{self.games_s:,.0f} games/s, {self.updates_h:,.0f} updates/h"
        yield "capacity", f"{rate}, bound by {self.bound}"
        yield "", f"{100 * self.driver:.0f} % of the driver's thread"
        between = f", {self.publish_s:.2f} s to all over 10 Gbit/s" if self.publish_s else ""
        yield "", f"{self.publish_bytes / 1e6:,.0f} MB of weights to each node per update{between}"


def capacity(config: RunConfig, chosen: Plan, machines: Sequence[Machine]) -> Capacity | None:
    """Estimate the throughput of a plan; None if it does not use GPUs."""
    gpus, ranks = together(machines).usable_gpus, len(chosen.learners)
    if not (gpus and ranks and NEEDS[chosen.engine].uses_gpus):
        return None
    shape, smallest = read_shape(config.model), min(gpus, key=lambda gpu: gpu.total_bytes)
    card = card_like(smallest.name, smallest.total_bytes)
    sync, actors = chosen.mode == "sync", len(chosen.actors)
    places, length = actors * chosen.games_in_flight, typical_length(config, shape)
    games = min(games_at_once(config, sync=sync), places)
    slower = SHARED if chosen.share != "off" and not sync else 1
    weights = read_bytes(shape, chosen.dtype, config.model.quantize)
    per_card = chosen.engines_per_gpu
    step = step_s(shape, chosen.dtype, card, weights, games / actors, length, per_card)
    answer = max(1.0, ANSWER_LENGTH * config.sampling.max_tokens)
    span = config.actors.tensor_parallel
    play = played_turns(config) * answer * slower * step / span / games
    tokens = config.learner.batch_size * config.learner.epochs * length
    passes = math.ceil(tokens / ranks / (chosen.micro_batch_tokens or PASS_TOKENS))
    learn = max(tokens / ranks * token_s(shape, card), passes * shape.layers * LAUNCH_S)
    if config.model.quantize != "none":  # dequantized in forward and backward passes
        learn += 2 * passes * weights / (BANDWIDTH_USED * card.bandwidth)
    learn *= slower
    finished = config.learner.batch_size / GAME_TURNS
    by_cards, by_driver = play + learn if sync else max(play, learn), finished * DRIVER_S
    update_s = max(by_cards, by_driver)
    slowest = "playing" if play > learn else "learning"
    bound = "playing and learning in turn" if sync else slowest
    size = FP32 * shape.trained_parameters(config.model.adapter)
    nodes = {place.node for place in (*chosen.actors, *chosen.learners)}
    return Capacity(
        play_s=play,
        learn_s=learn,
        games=games,
        places=places,
        games_s=finished / update_s,
        updates_h=3600 / update_s,
        bound="the driver" if by_driver > by_cards else bound,
        driver=by_driver / update_s,
        publish_bytes=size,
        publish_s=(len(nodes) - 1) * size / NETWORK,
    )


def main(argv: list[str] | None = None) -> None:
    """Print the plan of a config for such machines, and its capacity."""
    options = parser(__doc__, machine="8xh100", nodes=1, config="default")
    given, fields = options.parse_known_args(argv)
    try:
        config = load(given.config, parse_options(fields, {}))
        machines = nodes_named(given.machine, given.nodes)
        chosen = plan(config, machines, NEEDS)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    print(f"machine  {len(machines)} x {given.machine}: {together(machines).summary}")
    print(chosen.text())
    found = capacity(config, chosen, machines)
    for name, value in found.rows() if found else [("capacity", "unknown of processors")]:
        print(f"{name:<9}{value}")


if __name__ == "__main__":
    main()
