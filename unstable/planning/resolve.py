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
    ranks = config.learner.num
    return config.updated(
        {
            "model.init": start if config.model.init == "auto" else config.model.init,
            "buffer.capacity": config.buffer_capacity,
            "model.dtype": plan.dtype,
            "opponents.pool_size": plan.pool_size,
            "loop.mode": plan.mode,
            "actors.num": len(plan.actors),
            "actors.engine": plan.engine,
            "actors.games_in_flight": plan.games_in_flight,
            "actors.max_loras": plan.max_loras,
            "actors.max_cpu_loras": plan.max_cpu_loras,
            "actors.engines_per_gpu": plan.engines_per_gpu,
            "actors.gpu_memory": plan.gpu_memory,
            "actors.share_gpu": plan.share,
            "learner.num": max(1, len(plan.learners)) if ranks == "auto" else ranks,
            "learner.gradient_checkpointing": "on" if plan.gradient_checkpointing else "off",
            "learner.micro_batch_tokens": plan.micro_batch_tokens,
        }
    )
