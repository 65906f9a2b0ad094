"""Plans for several nodes that are not here: who runs at which, and never across two."""

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.machines import LARGE, SMALL, machine
from tests.helpers.rows import every_row
from unstable.config import ConfigError, load, parse
from unstable.engines.kinds import NEEDS
from unstable.planning.machine import Machine, Placement, together
from unstable.planning.plan import Plan, plan


def planned(options: dict[str, Any], *nodes: Machine, learner: bool = True) -> Plan:
    return plan(load("default", options), nodes, NEEDS, learner=learner)


def node(name: str, cards: int = 0, **changes: Any) -> Machine:
    return machine(cards, node=name, **changes)


def test_gpus_of_all_nodes_play_and_the_drivers_learn() -> None:
    one = node("a", 2)
    assert together([one]) is one and one.each == (one,)
    chosen = planned(LARGE | {"learner.num": 2}, node("a", 2), node("driver", 4))
    assert chosen.learners == (Placement("driver", ("2",)), Placement("driver", ("3",)))
    places = ((name, card) for name in ("a", "driver") for card in "01")
    assert chosen.actors == tuple(Placement(name, (card,)) for name, card in places)

    assert "actors   4: 2 at a, 2 at driver, vllm engine" in chosen.text()


def test_ranks_and_engines_stay_on_one_node() -> None:
    chosen = planned(LARGE | {"learner.num": 3}, node("a", 4), node("driver", 1))
    assert {rank.node for rank in chosen.learners} == {"a"}
    assert len(chosen.actors) == 2
    embedded = {"actors.engine": "embedded", "learner.num": 2}
    chosen = planned(LARGE | embedded, node("a", 1), node("driver", 2))
    assert {rank.node for rank in chosen.learners} == {"driver"}
    spread = planned(LARGE | {"learner.num": 5}, node("a", 4), node("driver", 2))
    assert [rank.node for rank in spread.learners] == ["a"] * 3 + ["driver"] * 2
    options = LARGE | {"actors.tensor_parallel": 2, "learner.num": 1}
    chosen = planned(options, node("a", 3), node("b", 3), node("driver", 1))
    assert chosen.actors == (Placement("a", ("0", "1")), Placement("b", ("0", "1")))
    with pytest.raises(ConfigError, match=r"set actors\.num to 2"):
        planned(options | {"actors.num": 3}, node("a", 3), node("b", 3), node("driver", 1))


def test_node_with_unusable_gpus_is_named() -> None:
    broken = node("b", nvml_error="no driver")
    with pytest.raises(ConfigError, match=r"GPUs cannot be used: .*b: no driver"):
        planned(LARGE, node("a", 1), broken, node("driver", 1))


def test_cpus_of_all_nodes_play_and_the_drivers_learns() -> None:
    nodes = node("a", cores=4), node("driver", cores=4)
    chosen = planned(SMALL, *nodes)
    assert chosen.learners == (Placement("driver"),)
    assert [actor.node for actor in chosen.actors] == ["a"] * 4 + ["driver"] * 2
    assert chosen.learner_threads == 2
    in_turn = planned(SMALL | {"loop.mode": "sync"}, *nodes)
    assert len(in_turn.actors) == 8 and in_turn.learner_threads == 4
    given = planned(SMALL | {"actors.num": 3}, *nodes)
    assert [actor.node for actor in given.actors] == ["a", "a", "driver"]
    assert len(planned(SMALL, nodes[0], learner=False).actors) == 4


def test_dtype_is_fast_on_all_nodes() -> None:
    slow = replace(node("a"), bfloat16=False)
    assert planned(SMALL, slow, node("driver")).dtype == "float32"


@every_row("address", "local", "auto", "10.0.0.1:6379", "head.example:6379")
def test_valid_cluster_addresses_are_accepted(address: str) -> None:
    assert parse({"cluster": {"address": address}}).cluster.is_joined == (address != "local")


@every_row("address", "ray://10.0.0.1:10001", "10.0.0.1", "head:0", ":6379", "a:b")
def test_invalid_cluster_addresses_are_rejected(address: str) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.address.* write (local, auto or )?HOST:PORT"):
        parse({"cluster": {"address": address}})
