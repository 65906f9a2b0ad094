"""Replacement of "auto" in a config by its plan's decisions."""

from collections.abc import Mapping
from typing import Any

from unstable.config import RunConfig
from unstable.planning.plan import Plan

UNDECIDED: Mapping[str, Any] = {
    "actors.num": "auto",
    "actors.engine": "auto",
    "actors.games_in_flight": "auto",
    "actors.engines_per_gpu": "auto",
    "actors.gpu_memory": "auto",
    "actors.share_gpu": "auto",
    "learner.gradient_checkpointing": "auto",
    "learner.micro_batch_tokens": None,
    "cluster.address": "local",
}
"""Fields that a plan decides again when a run is evaluated or resumed, maybe on another machine."""


def resolve(config: RunConfig, plan: Plan, start: str) -> RunConfig:
    """Return the config with every "auto" replaced by the plan's decision or its consequence.

    `start` is the initial adapter if `model.init` is auto. Values that a game, an algorithm, a
    device or the terminal decides stay: `games.events`, `games.parser`, `groups.size`,
    `sampling.moves`, `learner.micro_batch_size`, `tracking.dashboard`.
    """
    data = config.model_dump()
    if config.model.init == "auto":
        data["model"]["init"] = start
    data["buffer"]["capacity"] = config.buffer_capacity
    data["model"]["dtype"] = plan.dtype
    data["opponents"]["pool_size"] = plan.pool_size
    data["loop"]["mode"] = plan.mode
    data["actors"] |= {
        "num": len(plan.actors),
        "engine": plan.engine,
        "games_in_flight": plan.games_in_flight,
        "max_loras": plan.max_loras,
        "max_cpu_loras": plan.max_cpu_loras,
        "engines_per_gpu": plan.engines_per_gpu,
        "gpu_memory": plan.gpu_memory,
        "share_gpu": plan.share,
    }
    if config.learner.num == "auto":
        data["learner"]["num"] = max(1, len(plan.learners))
    data["learner"] |= {
        "gradient_checkpointing": "on" if plan.gradient_checkpointing else "off",
        "micro_batch_tokens": plan.micro_batch_tokens,
    }
    return type(config).model_validate(data)
