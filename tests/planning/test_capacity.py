"""What a plan comes to in an hour, for machines that are not here."""

from typing import Any

import pytest

from tests.helpers.machines import QWEN
from unstable.cli import run
from unstable.config import ConfigError, load
from unstable.engines.needs import NEEDS
from unstable.planning import figures
from unstable.planning.capacity import Capacity, capacity
from unstable.planning.elsewhere import nodes_named
from unstable.planning.plan import plan


def at(nodes: int, gpus: int, **options: Any) -> Capacity:
    config = load("default", {"model.name": str(QWEN), **options})
    found = capacity(config, plan(config, nodes_named("h100", nodes, gpus), NEEDS))
    assert found is not None
    return found


def test_more_cards_and_nodes_do_more() -> None:
    assert at(1, 1).updates_h < at(1, 2).updates_h < at(1, 8).updates_h
    wide = {"learner.batch_size": 8192}
    assert at(1, 8, **wide).games_s < at(4, 8, **wide).games_s


def test_the_driver_bounds_what_all_others_could_do() -> None:
    small = {"model.name": "smollm2-135m", "sampling.max_prompt_tokens": 32}
    fast = at(8, 8, **small, **{"learner.batch_size": 65_536, "sampling.max_tokens": 1})
    assert fast.bound == "the driver" and fast.driver == 1.0
    assert fast.games_s == pytest.approx(1 / figures.DRIVER_S)
    assert at(1, 2).driver < 0.1


def test_an_adapter_goes_to_each_node_once() -> None:
    one, four = at(1, 8), at(4, 8)
    assert one.publish_bytes == four.publish_bytes
    assert one.publish_s == 0
    assert four.publish_s == pytest.approx(3 * four.publish_bytes / figures.NETWORK)


def test_nothing_is_known_of_processors() -> None:
    config = load("default", {"actors.engine": "embedded"})
    assert capacity(config, plan(config, nodes_named("h100", 2, 1), NEEDS)) is None


def test_the_doctor_prints_it_for_nodes_that_are_not_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(["doctor", "--nodes", "4", "--gpus", "8", "--model", str(QWEN)])
    said = capsys.readouterr().out
    assert "4 nodes, 512 cores" in said
    assert "capacity" in said and "updates/h, bound by" in said


@pytest.mark.parametrize(
    ("text", "nodes", "gpus", "message"),
    [
        (None, 0, 8, "--nodes = 0: give a number"),
        (None, 1, 1000, "--gpus = 1000: give a number"),
        ("8xh100", 4, 8, "--gpus = 8: --machine = '8xh100' says itself"),
        ("z80", 4, 8, "is no file and no machine"),
    ],
)
def test_other_nodes_are_refused(text: str | None, nodes: int, gpus: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nodes_named(text, nodes, gpus)
