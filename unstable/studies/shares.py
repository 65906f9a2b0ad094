"""Equal shares of a machine, so that several runs proceed concurrently, each as if alone."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from unstable.config import ConfigError, RunConfig
from unstable.planning.machine import Machine
from unstable.planning.plan import Engines, Plan, plan

MOST = 256


class Share(NamedTuple):
    """Resources of a run: Share(cores=(0, 1), gpus=("0",))"""

    cores: tuple[int, ...]
    gpus: tuple[str, ...]

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that hide all other GPUs from a process."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}


def shares(machine: Machine, count: int, cores: Sequence[int]) -> list[Share]:
    """Return `count` equal shares; the remainder stays unused.

    `cores` are the cores that this process may run on, possibly more than a container's quota.
    """
    own, cards = machine.cores // count, len(machine.gpus) // count
    ids = [gpu.id for gpu in machine.gpus]
    return [
        Share(tuple(cores[at * own : (at + 1) * own]), tuple(ids[at * cards : (at + 1) * cards]))
        for at in range(count)
    ]


def most_at_once(configs: Sequence[RunConfig], machine: Machine, engines: Engines) -> int:
    """Return how many of these runs a machine can run concurrently, at least 1.

    Each run needs memory, GPUs if it uses them alone, and as many cores as processes that compute
    concurrently without a GPU; its `loop.mode` must be the one that it has alone. Raises
    `ConfigError` for a config that does not fit alone.
    """
    alone = [plan(config, [machine], engines) for config in configs]
    most = min(machine.cores, *(len(machine.usable_gpus) for each in alone if _cards(each)), MOST)
    pairs = list(zip(configs, alone, strict=True))
    return next(
        (
            count
            for count in range(most, 1, -1)
            if all(_problem(*pair, machine, count, engines) is None for pair in pairs)
        ),
        1,
    )


def check_at_once(config: RunConfig, machine: Machine, count: int, engines: Engines) -> None:
    """Raise `ConfigError` if `count` such runs do not fit, or would run differently than alone."""
    alone = plan(config, [machine], engines)
    if count > 1 and (problem := _problem(config, alone, machine, count, engines)) is not None:
        raise ConfigError(f"at_once = {count}: {problem}; lower it, or set auto")


def _problem(
    config: RunConfig, alone: Plan, machine: Machine, count: int, engines: Engines
) -> str | None:
    """Return why `count` such runs are too many; None if they fit."""
    if count > machine.cores:
        return f"only {machine.cores} cores"
    try:
        found = plan(config, [part(machine, count)], engines)
    except ConfigError as error:
        return str(error)
    if bool(_cards(found)) != bool(_cards(alone)):
        return f"only {len(machine.usable_gpus)} GPUs"
    if found.mode != alone.mode:
        return f"too few cores per run for loop.mode = {alone.mode}"
    kinds = [sum(not each.gpus for each in kind) for kind in (found.actors, found.learners)]
    computing = max(kinds) if found.mode == "sync" else sum(kinds)
    own = machine.cores // count
    return f"a run needs {computing} cores and gets {own}" if computing > own else None


def part(machine: Machine, count: int) -> Machine:
    """Return the part of a machine that each of `count` runs has."""
    return replace(
        machine,
        cores=machine.cores // count,
        memory_bytes=machine.memory_bytes // count,
        free_bytes=machine.free_bytes // count,
        gpus=machine.gpus[: len(machine.gpus) // count],
    )


def _cards(found: Plan) -> set[str]:
    """Return the GPUs that a plan uses."""
    return {card for place in (*found.actors, *found.learners) for card in place.gpus}
