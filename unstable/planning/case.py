"""A config on a machine with the values that follow, and the result of placing its processes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unstable.config import ConfigError, RunConfig
from unstable.models.shape import read_shape
from unstable.models.sizes import ModelShape
from unstable.planning.fit import Budget, Device
from unstable.planning.machine import GPU, Machine, Placement
from unstable.planning.memory import EngineMemory, LearnerMemory, learner_memory
from unstable.planning.needs import Dtype, EngineNeeds, EngineSetup, choose_dtype

VLLM_GAMES = 384
"""Most games in flight on one vLLM engine; beyond that its front end is the bottleneck."""
LEAST_SLOTS = 4
"""Fewest versions that a pass of vLLM mixes, regardless of the games, if as many can play: a
request for another version waits for a slot."""
_CRITIC = 3
"""Number of policies whose memory a critic of all weights takes, since it has moments too."""
TYPICAL_LENGTH = 0.25
"""Share of the longest prompt and answer that is assumed before anything is measured."""
PLANNED = 0.95
"""Share of a GPU's free memory that a plan uses: estimates err, and allocators lose some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A config on a machine, with the values that follow directly."""

    config: RunConfig
    machine: Machine
    engine: EngineNeeds
    dtype: Dtype
    shape: ModelShape
    ranks: int  # number of learner ranks; 0: no learner
    longest: int  # tokens of the longest prompt and answer
    typical: int  # tokens of a typical prompt and answer
    max_loras: int  # minimum
    wanted_loras: int  # maximum of any use
    max_cpu_loras: int

    def place(self, *cards: GPU) -> Placement:
        """Return a process's place on these GPUs; without any, on the CPU."""
        node = cards[0].node if cards else self.machine.node
        return Placement(node, tuple(card.id for card in cards))

    def learner_memory(self, *, on_gpu: bool) -> LearnerMemory:
        """Return the memory of each learner rank."""
        learner = self.config.learner
        tokens = learner.batch_size * self.config.sampling.max_tokens
        others = learner.algorithm.uses_reference + learner.algorithm.uses_teacher
        critic = getattr(learner.algorithm, "critic", None)
        if self.config.model.trains_all and critic is not None and critic.kind == "adapter":
            others += _CRITIC
        return learner_memory(
            self.shape,
            self.config.model.adapter,
            self.dtype,
            on_gpu=on_gpu,
            ranks=self.ranks,
            sharded=learner.parallel == "fsdp",
            others=others,
            average=learner.ema is not None,
            reference_tokens=tokens
            * (learner.algorithm.uses_exact_kl + learner.algorithm.uses_teacher),
            quantize=self.config.model.quantize,
        )

    def engine_memory(self, *, on_gpu: bool) -> EngineMemory:
        """Return the memory of each engine, with `max_loras` slots."""
        games = self.config.actors.games_in_flight
        setup = EngineSetup(
            config=self.config,
            shape=self.shape,
            dtype=self.dtype,
            max_requests=VLLM_GAMES if games == "auto" else games,
            max_loras=self.max_loras,
            max_cpu_loras=self.max_cpu_loras,
            on_gpu=on_gpu,
        )
        return self.engine.memory(setup)


class Placed(NamedTuple):
    """Processes on devices, and the memory that they have there."""

    actors: tuple[Placement, ...]
    learners: tuple[Placement, ...]
    budget: Budget
    games: int
    max_loras: int
    engines_per_gpu: int
    engine: EngineMemory
    cached_tokens: int  # capacity of the engine's cache
    learner_on: Device | None


def case_of(
    config: RunConfig,
    machine: Machine,
    engine: EngineNeeds,
    ranks: int,
    request_tokens: float | None = None,
) -> Case:
    """Return the case of `ranks` learner ranks; `request_tokens` is the measured length, if any."""
    shape = read_shape(config.model)
    actors = config.actors
    versions = versions_kept(config)
    most = versions - 1 if actors.max_cpu_loras == "auto" else actors.max_cpu_loras
    wanted = min(versions_in_play(config), most)
    mixed = min(LEAST_SLOTS, wanted) if actors.max_loras == "auto" else actors.max_loras
    kept = max(mixed, versions)
    asked = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    longest = min(asked, shape.max_length)
    typical = TYPICAL_LENGTH * longest if request_tokens is None else request_tokens
    return Case(
        config=config,
        machine=machine,
        engine=engine,
        dtype=choose_dtype(config, machine),
        shape=shape,
        ranks=ranks,
        longest=longest,
        typical=max(1, int(min(typical, longest))),
        max_loras=mixed,
        wanted_loras=wanted if actors.max_loras == "auto" else mixed,
        max_cpu_loras=kept if actors.max_cpu_loras == "auto" else actors.max_cpu_loras,
    )


def versions_kept(config: RunConfig) -> int:
    """Return the most versions that an engine keeps, including one that is being published."""
    others = sum(each.adapter_folder is not None for each in config.opponents.fixed)
    judges = len(config.judge_adapters)
    own = config.opponents.most_past + 1 + evaluated_beside(config)
    return own + others + judges + len(config.openings.versions) + 1


def evaluated_beside(config: RunConfig) -> int:
    """Return how many versions may be evaluated, or wait for it, while later ones are current."""
    evaluates = config.eval.every or config.eval.exploitability.every
    return 2 if config.loop.mode != "sync" and evaluates else 0


def versions_in_play(config: RunConfig) -> int:
    """Return the number of LoRAs that one engine's games may request at once.

    They are the current version, previous ones still trained on, past ones as opponents, one under
    evaluation, opponents and judges that are LoRAs, and the player of openings.
    """
    pool = config.opponents.most_past
    past = max(config.buffer.max_staleness, pool * (_past_share(config) > 0))
    return 1 + min(past, pool) + _always(config)


def versions_at_once(config: RunConfig, games: int) -> int:
    """Return how many versions `games` games request on average, rounded up.

    In a game against a past version, that version plays every other turn. If all versions of the
    pool are equally likely, n turns request pool x (1 - (1 - 1 / pool)^n) different ones; other
    rules request fewer.
    """
    pool, turns = config.opponents.most_past, games * _past_share(config) / 2
    past = pool * (1 - (1 - 1 / max(1, pool)) ** turns)
    late = config.buffer.max_staleness
    before = max(late, math.ceil(min(1, late) + past))  # running games keep old versions
    return min(versions_in_play(config), 1 + before + _always(config))


def _past_share(config: RunConfig) -> float:
    """Return the share of games against past versions; the larger one if the guard changes it."""
    opponents = config.opponents
    later = [config.guard.opponents] if "opponents" in config.guard.action else []
    draws = [(each.past, each.self + each.past + each.fixed) for each in (opponents.draw, *later)]
    return max(past / total if total else 0.0 for past, total in draws)


def _always(config: RunConfig) -> int:
    """Count the LoRAs other than the policy's current version and its past ones as opponents."""
    others = sum(each.adapter_folder is not None for each in config.opponents.fixed)
    judges = len(config.judge_adapters)
    return min(evaluated_beside(config), 1) + others + judges + len(config.openings.versions)


def too_few(wanted: str, needed: int, gpus: Sequence[GPU], change: str) -> ConfigError:
    """Return the error of a config that needs more GPUs than there are."""
    return ConfigError(f"{wanted} needs {needed} GPUs, but {len(gpus)} are available; set {change}")


def named_cards(gpus: Sequence[GPU]) -> str:
    """Name GPUs in words, with their nodes if they belong to several."""
    ids: dict[str, dict[str, None]] = {}
    for gpu in gpus:
        ids.setdefault(gpu.node, {})[gpu.id] = None
    if len(ids) == 1:
        return f"GPU {', '.join(*ids.values())}"
    return "; ".join(f"GPU {', '.join(own)} of {node}" for node, own in ids.items())


def smallest(gpus: Sequence[GPU], *, by_share: bool = True) -> Device:
    """Return a device with the least memory of these GPUs, and the least free share or bytes."""
    total, free = min(gpu.total_bytes for gpu in gpus), min(gpu.free_bytes for gpu in gpus)
    if by_share:  # an engine takes the same share of each
        free = int(total * min(gpu.free_bytes / gpu.total_bytes for gpu in gpus))
    return Device(named_cards(gpus), total, int(PLANNED * free), on_gpu=True)
