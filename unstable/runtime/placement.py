"""Placement of processes: on this machine, or in a reservation of a cluster's Ray on a node.

A local Ray serves only this run, so the run selects the GPUs of each process. On a cluster, which
others use too, each process is in a placement group on its node, and Ray selects its GPUs.
"""

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from unstable.config import ConfigError
from unstable.planning.machine import Placement
from unstable.runtime.nodes import ClusterNode

NODE_LABEL = "ray.io/node-id"
"""Label that Ray itself assigns to each node."""
STEP = 10_000
"""Steps per unit in which Ray counts resources."""


class NodePlace(NamedTuple):
    """A placement on a node of a joined cluster, and Ray's reservation for it."""

    placement: Placement
    node: ClusterNode
    group: Any  # Ray's placement group
    gpus: float  # Ray's count; a fraction if processes share a GPU

    def options(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return Ray's options for a process here; Ray selects the process's GPUs and Python."""
        paths = [*self.node.paths, self.node.found.python_path]
        hidden = {} if self.gpus else {"CUDA_VISIBLE_DEVICES": ""}
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **hidden, **variables}
        return {
            "num_cpus": 1,
            "num_gpus": self.gpus,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, 0),
            "runtime_env": {"env_vars": own},
        }


def here(placement: Placement, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return Ray's options for a process on this machine, with its GPUs and import path."""
    paths = filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])
    own = {
        "PYTHONPATH": os.pathsep.join(paths),
        "CUDA_VISIBLE_DEVICES": ",".join(placement.gpus),
        **variables,
    }
    environment: dict[str, Any] = {"env_vars": own}
    # Ray passes it to a shell unquoted, which would split a path at its spaces.
    if (quoted := shlex.quote(sys.executable)) != sys.executable:
        environment["py_executable"] = quoted
    # Ray gives each node a resource of this name: a process that requests some of it runs there.
    node = {f"node:{placement.node}": 0.001}
    return {"num_cpus": 1, "resources": node, "runtime_env": environment}


def reserve(placements: Sequence[Placement], nodes: Mapping[str, ClusterNode]) -> list[NodePlace]:
    """Reserve with Ray what these processes need; their start waits until Ray provides it.

    Processes on the same GPUs share a placement group, so that Ray gives them the same GPUs. Raises
    `ConfigError` if Ray cannot share GPUs in this way.
    """
    made: dict[int, NodePlace] = {}
    for indices in _together(placements):
        first = placements[indices[0]]
        cards = {card for index in indices for card in placements[index].gpus}
        _check(cards, [placements[index] for index in indices])
        share = len(cards) if len(indices) == 1 else (STEP // len(indices)) / STEP * bool(cards)
        bundle = {"CPU": len(indices), **({"GPU": len(cards)} if cards else {})}
        node = nodes[first.node]
        group = placement_group(
            [bundle],
            strategy="STRICT_PACK",
            bundle_label_selector=[{NODE_LABEL: node.id}],
        )
        for index in indices:
            made[index] = NodePlace(placements[index], node, group, share)
    return [made[index] for index in range(len(placements))]


def free(place: NodePlace) -> None:
    """Release a place's reservation, which ends the processes in it."""
    if ray.is_initialized():
        remove_placement_group(place.group)


Start = Callable[[], Coroutine[Any, Any, None]]


def in_turn(
    starts: Sequence[tuple[Placement | NodePlace, Start]],
) -> list[Coroutine[Any, Any, None]]:
    """Chain the starts of processes on the same GPUs, since an engine measures free memory."""
    queues: dict[object, list[Start]] = defaultdict(list)
    for index, (where, start) in enumerate(starts):
        placement = where.placement if isinstance(where, NodePlace) else where
        queues[placement if placement.gpus else index].append(start)

    async def one_by_one(queue: Sequence[Start]) -> None:
        for start in queue:
            await start()

    return [one_by_one(queue) for queue in queues.values()]


def _together(placements: Sequence[Placement]) -> list[list[int]]:
    """Return the indices of placements, grouped by common GPUs."""
    of_card: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, placement in enumerate(placements):
        for card in placement.gpus:
            of_card[placement.node, card].append(index)
    groups = [[index] for index in range(len(placements))]
    for indices in of_card.values():
        sharing = [group for group in groups if set(group) & set(indices)]
        groups = [group for group in groups if group not in sharing]
        groups.append(sorted(index for group in sharing for index in group))
    return sorted(groups)


def _check(cards: set[str], sharing: Sequence[Placement]) -> None:
    """Raise `ConfigError` if processes share several GPUs; Ray can share only a single one."""
    if len(sharing) > 1 and len(cards) > 1:
        raise ConfigError(
            f"actors.tensor_parallel: on a cluster, an engine on {len(cards)} GPUs cannot share "
            "them with another process; set actors.share_gpu to off"
        )
