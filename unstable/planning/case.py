"""A config on a machine, with what follows at once; and what placing its processes comes to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unstable.config import ConfigError, RunConfig
from unstable.models.shape import ModelShape, read_shape
from unstable.planning.fit import Budget, Device
from unstable.planning.machine import GPU, Machine, Placement
from unstable.planning.memory import EngineMemory, LearnerMemory, learner_memory
from unstable.planning.needs import Dtype, EngineNeeds, EngineSetup, choose_dtype

VLLM_GAMES = 384
"""Most games in flight on one vLLM engine; beyond that its front end is the limit."""
LEAST_SLOTS = 4
"""Versions that a pass of vLLM mixes however few games there are, where so many can play: a request
of one more waits for a slot."""
_CRITIC = 3
"""Other policies that a critic of all weights takes as much memory as: it has moments too."""
TYPICAL_LENGTH = 0.25
"""Of the greatest length of prompt and answer, before anything is measured: an estimate."""
PLANNED = 0.95
"""Share of a GPU's free memory that is planned with: estimates err, and allocators lose some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A config on a machine, with what follows at once."""

    config: RunConfig
    machine: Machine
    engine: EngineNeeds
    dtype: Dtype
    shape: ModelShape
    ranks: int  # of the learner; 0: there is none
    longest: int  # tokens of the longest prompt and answer
    typical: int  # of a usual one
    max_loras: int  # at least
    wanted_loras: int  # more of them are of no use
    max_cpu_loras: int

    def place(self, *cards: GPU) -> Placement:
        """A process's place on these cards, or on the processor."""
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
            max_length=self.longest,
            max_requests=VLLM_GAMES if games == "auto" else games,
            max_loras=self.max_loras,
            max_cpu_loras=self.max_cpu_loras,
            on_gpu=on_gpu,
        )
        return self.engine.memory(setup)


class Placed(NamedTuple):
    """Processes on devices, and the room that they have there."""

    actors: tuple[Placement, ...]
    learners: tuple[Placement, ...]
    budget: Budget
    games: int
    max_loras: int
    engines_per_gpu: int
    engine: EngineMemory
    cached_tokens: int  # that the engine has room for
    learner_on: Device | None


def case_of(
    config: RunConfig,
    machine: Machine,
    engine: EngineNeeds,
    ranks: int,
    request_tokens: float | None = None,
) -> Case:
    """The case of so many learner ranks; `request_tokens` is the measured length, where it was."""
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
    """Versions that an engine keeps at most, with one that is just being published."""
    others = sum(each.adapter_folder is not None for each in config.opponents.fixed)
    own = config.opponents.most_past + 1 + evaluated_beside(config)
    return own + others + len(config.openings.versions) + 1


def evaluated_beside(config: RunConfig) -> int:
    """Versions whose evaluation may be on its way or wait while later ones are current."""
    evaluates = config.eval.every or config.eval.exploitability.every
    return 2 if config.loop.mode != "sync" and evaluates else 0


def versions_in_play(config: RunConfig) -> int:
    """LoRAs that the games of one engine may ask for at once.

    They are the current version and those before it whose games are still learned from, past ones
    as opponents, one that is evaluated, opponents that are LoRAs, and who makes openings.
    """
    pool = config.opponents.most_past
    past = max(config.buffer.max_staleness, pool * (_past_share(config) > 0))
    return 1 + min(past, pool) + _always(config)


def versions_at_once(config: RunConfig, games: int) -> int:
    """Return how many versions so many games ask for on average, rounded up.

    Of a game against a past version every other turn is that one's. Where each of the pool is as
    likely as any other, n turns ask for pool x (1 - (1 - 1 / pool)^n) different ones; by another
    rule they ask for fewer.
    """
    pool, turns = config.opponents.most_past, games * _past_share(config) / 2
    past = pool * (1 - (1 - 1 / max(1, pool)) ** turns)
    late = config.buffer.max_staleness
    before = max(late, math.ceil(min(1, late) + past))  # games go on with the version before
    return min(versions_in_play(config), 1 + before + _always(config))


def _past_share(config: RunConfig) -> float:
    """Return the share of games against past versions: at most, if the guard changes it."""
    opponents = config.opponents
    later = [config.guard.opponents] if "opponents" in config.guard.action else []
    draws = [(each.past, each.self + each.past + each.fixed) for each in (opponents.draw, *later)]
    return max(past / total if total else 0.0 for past, total in draws)


def _always(config: RunConfig) -> int:
    """LoRAs besides the policy's current and past ones as opponents."""
    others = sum(each.adapter_folder is not None for each in config.opponents.fixed)
    judges = len(config.judge_adapters)
    return min(evaluated_beside(config), 1) + others + judges + len(config.openings.versions)


def too_few(wanted: str, needed: int, gpus: Sequence[GPU], change: str) -> ConfigError:
    """The error of a config that wants more cards than there are."""
    return ConfigError(f"{wanted} needs {needed} GPUs, but there are {len(gpus)}; set {change}")


def named_cards(gpus: Sequence[GPU]) -> str:
    """Cards in words, with their nodes where they are of several."""
    ids: dict[str, dict[str, None]] = {}
    for gpu in gpus:
        ids.setdefault(gpu.node, {})[gpu.id] = None
    if len(ids) == 1:
        return f"GPU {', '.join(*ids.values())}"
    return "; ".join(f"GPU {', '.join(own)} of {node}" for node, own in ids.items())


def smallest(gpus: Sequence[GPU]) -> Device:
    """Return what can be had of each of the cards."""
    return Device(
        named_cards(gpus),
        min(gpu.total_bytes for gpu in gpus),
        int(PLANNED * min(gpu.free_bytes for gpu in gpus)),
        on_gpu=True,
    )
