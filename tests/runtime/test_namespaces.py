"""A run on several machines, each with a network address, a home and a disk of its own.

Machines are network namespaces of this one (`tests/helpers/namespaces.py`): a node that is
unplugged is detected only by its silence.
"""

import json
import math
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.cli import PATIENCE_S, command_line, run_locally
from tests.helpers.learners import save_model
from tests.helpers.namespaces import PORT, Host, Network, lacking, network
from tests.helpers.records import flat
from tests.helpers.resume import rows, trained_on, weights
from unstable.records.folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or lacking() is not None, reason=str(lacking())),
]
OPTIONS = {
    "--config": "tiny_nim",
    "--name": "run",
    "--learner.batch_size": 128,
    "--learner.micro_batch_size": 64,
    "--actors.games_in_flight": 16,
    "--eval.every": 0,
    "--eval.exploitability.every": 0,
    "--tracking.report": "false",
    "--tracking.keep_checkpoints": 100,
}
STEPS = 8


def words(**changes: Any) -> list[str]:
    options = OPTIONS | {f"--{name.replace('__', '.')}": value for name, value in changes.items()}
    return ["train", *(str(word) for option in options.items() for word in option)]


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


def cluster(net: Network, nodes: int, head_cpus: int = 4) -> list[Host]:
    """Start machines with Ray; a head without CPUs hosts only the driver."""
    head, *others = hosts = [net.host() for _ in range(nodes)]
    head.join(None, f"--num-cpus={head_cpus}")
    until(lambda: "Ray runtime started" in said(head, "ray.txt"), "the head")
    for other in others:
        other.join(head)
    return hosts


class Run:
    """A training whose driver is a command on a machine."""

    def __init__(self, driver: Host, nodes: int, **changes: Any) -> None:
        self._driver = driver
        address = f"{driver.address}:{PORT}"
        more = {"ray_address": address, "cluster__min_nodes": nodes, **changes}
        arguments = words(**more)
        command = [sys.executable, "-m", "unstable.cli", *arguments]
        self.process = driver.begin(*command, log="run.txt")
        self.folder = RunFolder(driver.folder / "work/outputs/run")

    @property
    def said(self) -> str:
        return said(self._driver, "run.txt")

    @property
    def update(self) -> int:
        return max((int(number) for number in re.findall(r"update (\d+)/", self.said)), default=0)

    def until(self, text: str) -> None:
        until(lambda: text in self.said or self._ended(), text, lambda: self.said)

    def until_update(self, number: int) -> None:
        until(lambda: self.update >= number or self._ended(), f"update {number}", lambda: self.said)

    def _ended(self) -> bool:
        assert self.process.is_running(), self.said
        assert self.process.status() != psutil.STATUS_ZOMBIE, self.said
        return False

    def wait(self, code: int = 0) -> None:
        assert self.process.wait(timeout=PATIENCE_S) == code, self.said[-4000:]


def said(host: Host, file: str) -> str:
    path = host.folder / file
    return path.read_text() if path.exists() else ""


def until(holds: Callable[[], bool], what: str, shown: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"timed out waiting for {what}: {shown()[-4000:]}"
        time.sleep(0.1)


def alone(folder: Path, **changes: Any) -> RunFolder:
    """Run the training of the cluster on one machine."""
    folder.mkdir()
    run_locally(folder, *words(**changes))
    return RunFolder(folder / "outputs/run")


def games(folder: RunFolder) -> dict[int, Any]:
    """Return the recorded games by id, after asserting that each is recorded once."""
    found: dict[int, Any] = {}
    for path in sorted((folder.root / "games").glob("train-*.jsonl")):
        for line in path.read_text().splitlines():
            game = flat(json.loads(line))
            assert game["game"] not in found, "a game is recorded twice"
            found[game["game"]] = game
    return found


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-15)
    return bool(one == other)


def moves(folder: RunFolder) -> dict[int, list[str]]:
    return {n: [t["action"] for t in game["turns"]] for n, game in games(folder).items()}


def check_whole(folder: RunFolder, steps: int) -> None:
    """Assert that every version has a row, and that trained games are recorded and used once."""
    assert [row["version"] for row in rows(folder)] == [*range(steps + 1)]
    trained = trained_on(folder)
    assert max(Counter(trained).values()) == 1
    assert {game for game, _ in trained} <= games(folder).keys()


@pytest.mark.tables("nodes", 0)
def test_three_machines_equal_one_and_survive_a_loss(net: Network, tmp_path: Path) -> None:
    """No disk is shared, and one of them is unplugged while it plays."""
    head, _, third = cluster(net, 3)
    changes = {"loop__mode": "sync", "steps": STEPS, "num_actors": 3}
    run = Run(head, 3, **changes)
    run.until_update(2)
    third.unplug()
    began = time.monotonic()
    run.until(f"lost its place on {third.address}")
    noticed, at = time.monotonic() - began, run.update
    run.until_update(at + 1)
    print(f"noticed after {noticed:.1f} s, at full speed after {time.monotonic() - began:.1f} s")
    run.wait()
    assert f"{third.address}: " in run.said and "requires a token" in run.said
    whole = alone(tmp_path / "alone", **changes)
    for version in range(STEPS + 1):
        assert weights(run.folder, version) == weights(whole, version)
    for mine, its in zip(rows(run.folder), rows(whole), strict=True):
        names = mine.keys() | its.keys()
        apart = {name: (mine.get(name), its.get(name)) for name in names}
        # Means are summed in the order of arrival, which is not deterministic.
        assert {n: pair for n, pair in apart.items() if not alike(*pair)} == {}
    assert moves(run.folder) == moves(whole)
    check_whole(run.folder, STEPS)
    for index in range(3):  # two of them ran without this folder
        assert re.search(r"process \d+ on .* ready", run.folder.log(f"actor-{index}").read_text())


@pytest.mark.tables("nodes", 2)
@pytest.mark.fault("a cluster node leaves")
def test_nodes_join_and_leave_and_learner_moves(net: Network) -> None:
    """The driver's machine has no CPUs for Ray: the learner is elsewhere and sends its files."""
    head, *others = cluster(net, 3, head_cpus=0)
    save_model(head.folder / "model")  # for the ranks, which start after the run
    for other in others:
        shutil.copytree(head.folder / "model", other.folder / "model")
    run = Run(head, 2, loop__mode="async", steps=100_000)
    run.until_update(2)
    lines = {host: "".join(map(command_line, processes_of(host))) for host in others}
    (learners,) = (host for host in others if "LearnerProcess" in lines[host])
    (actors,) = [host for host in others if host is not learners]
    came = net.host()
    shutil.copytree(head.folder / "model", came.folder / "model")
    came.join(head)
    began = time.monotonic()
    run.until(f"node {came.address} joined")
    run.until(f"runs on {came.address}")
    print(f"running after {time.monotonic() - began:.1f} s")
    run.until_update(run.update + 2)
    actors.kill()
    began = time.monotonic()
    run.until(f"lost its place on {actors.address}")
    print(f"noticed after {time.monotonic() - began:.1f} s")
    run.until_update(run.update + 2)
    back = psutil.Process(actors.join(head).pid)
    run.until(f"node {actors.address} joined")
    run.until(f"runs on {actors.address}")
    run.until_update(run.update + 2)
    the_learner_is_started_elsewhere(run, learners)
    run.process.send_signal(signal.SIGINT)
    run.wait(130)
    assert back.is_running(), "the cluster keeps running"
    assert f"{actors.address}: " in run.said
    check_whole(run.folder, max(run.folder.versions()))
    left = [*came.folder.glob("unstable-run-*"), *head.folder.glob("unstable-run-*")]
    assert left == [], "the run removes its folders on nodes"
    ranks_of_two_machines_are_one_learner(head)


def the_learner_is_started_elsewhere(run: Run, host: Host) -> None:
    """Kill the learner's machine, and check that the run resumes from the last saved version."""
    host.kill()
    began = time.monotonic()
    run.until("the learner died and is restarted from version")
    noticed, at = time.monotonic() - began, run.update
    run.until_update(at + 1)
    print(f"noticed after {noticed:.1f} s, the next update after {time.monotonic() - began:.1f} s")


def ranks_of_two_machines_are_one_learner(head: Host) -> None:
    """Check that ranks meet at rank 0's address, which is no loopback, and return their files."""
    command = [sys.executable, "-m", "tests.helpers.ranks_afar", f"{head.address}:{PORT}"]
    process = head.begin(*command, log="ranks.txt")
    assert process.wait(timeout=PATIENCE_S) == 0, said(head, "ranks.txt")[-4000:]
    found = re.search(r"apart (\S+) moved (\S+)", said(head, "ranks.txt"))
    assert found is not None
    assert float(found[1]) < 1e-5 < 1e-3 < float(found[2])


def processes_of(host: Host) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if host.is_mine(process)]
