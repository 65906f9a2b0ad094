"""Inspection, comparison and transfer of files for each node: without Ray, on plain values."""

import asyncio
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from tests.helpers.machines import machine
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.config import ConfigError, RunConfig, parse
from unstable.planning.machine import Placement
from unstable.records.folder import RunFolder
from unstable.runtime import cluster, crew, heartbeat, nodes, placement, survey
from unstable.runtime.crew import collect_logs
from unstable.runtime.files import Files, own_modules
from unstable.runtime.nodes import (
    ClusterNode,
    NodeAgent,
    NodeContents,
    differences,
    read_files,
    write_files,
)
from unstable.runtime.placement import NodePlace, reserve
from unstable.runtime.survey import model_folders, screen


def found(**changes: Any) -> NodeContents:
    values: dict[str, Any] = {
        "machine": machine(packages={"torch": "2.13.0", "ray": "2.60.0"}),
        "python": "3.11.7",
        "source": "a" * 64,
        "auth": "token",
        "python_path": "",
        "folders": {},
    }
    return NodeContents(**values | changes)


def node(name: str = "10.0.0.2", **changes: Any) -> ClusterNode:
    own = found(**changes)
    return ClusterNode(name, f"id of {name}", own, own.machine, is_drivers=False)


@every_row(
    "here, there, line",
    ({}, {"python": "3.12.1"}, "node 10.0.0.2: needs Python 3.11.7, has 3.12.1; install it"),
    ({}, {"source": "b" * 64}, "unstable bbbbbbbb differs from the driver's"),
    ({}, {"machine": machine(packages={"ray": "2.60.0"})}, "torch missing, the driver has 2.13.0"),
    ({"folders": {"/m": "x"}}, {"folders": {"/m": None}}, "folder /m of model.name is missing"),
    ({"folders": {"/m": "x"}}, {"folders": {"/m": "y"}}, "model in /m differs from the driver's"),
)
def test_node_differences_are_shown(here: dict[str, Any], there: dict[str, Any], line: str) -> None:
    (told,) = differences(node(**there), found(**here))
    assert line in told and "\n" not in told
    assert [*differences(node(), found())] == []


def test_model_folder_fingerprint_depends_on_content(tiny_folder: Path, tmp_path: Path) -> None:
    whole = nodes.fingerprint(tiny_folder)
    assert whole == nodes.fingerprint(tiny_folder) and whole is not None
    write_files(tmp_path / "copy", read_files(tiny_folder))
    assert nodes.fingerprint(tmp_path / "copy") == whole
    (tmp_path / "copy/config.json").write_text("{}")
    assert nodes.fingerprint(tmp_path / "copy") != whole
    assert nodes.fingerprint(tmp_path / "none") is None
    assert model_folders(parse({"model": {"name": str(tiny_folder)}}).model) == [str(tiny_folder)]
    assert model_folders(parse({"model": {"name": "tiny"}}).model) == []


def test_received_files_are_written_atomically(tmp_path: Path) -> None:
    files = {"adapter_config.json": b"{}", "average/adapter_config.json": b"[]"}
    (tmp_path / ".000012-left").mkdir()
    write_files(tmp_path / "000012", files)
    assert read_files(tmp_path / "000012") == files
    assert [path.name for path in tmp_path.iterdir()] == ["000012"]
    with pytest.raises(FileExistsError, match="is never overwritten"):
        write_files(tmp_path / "000012", {})


def test_agent_returns_log_text_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.tempfile, "tempdir", str(tmp_path))
    agent = NodeAgent()
    root = Path(agent.make())
    assert root.parent == tmp_path
    agent.put({"checkpoints/000001/learner.pt": b"state"})
    assert agent.take("checkpoints/000001") == {"learner.pt": b"state"}
    assert not (root / "checkpoints/000001").exists()
    log = root / "logs/actor-3.log"
    log.write_bytes(b"one\n")
    assert agent.logs() == {"actor-3.log": b"one\n"}
    with log.open("ab") as file:
        file.write(b"two\n")
    assert agent.logs() == {"actor-3.log": b"two\n"} and agent.logs() == {}
    log.rename(f"{log}.1")
    with Path(f"{log}.1").open("ab") as file:
        file.write(b"late\n")
    log.write_bytes(b"3\n")
    assert agent.logs() == {"actor-3.log": b"late\n3\n"}
    agent.close()
    assert not root.exists()


async def test_node_logs_reach_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LOG_BYTES", 5)
    told = [{"actor-3.log": text} for text in (b"first\n", b"second\n", b"third\n")]

    async def logs() -> dict[str, bytes]:
        if not told:
            raise ActorUnavailableError("cut off", None)
        return told.pop(0)

    there, folder = node(), RunFolder(tmp_path)
    there.agent = SimpleNamespace(logs=SimpleNamespace(remote=logs))
    for _ in range(4):  # the fourth call cannot reach it
        await collect_logs(there, folder)
    logs_there = [tmp_path / f"logs/actor-3.log{ending}" for ending in (".2", ".1", "")]
    assert [path.read_bytes() for path in logs_there] == [b"first\n", b"second\n", b"third\n"]


async def test_node_is_alive_while_its_agent_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "PAUSE_S", 0.0)
    monkeypatch.setattr(heartbeat, "PING_S", 0.05)
    answers: list[Any] = []

    async def ping() -> None:
        if isinstance(error := answers.pop(0), BaseException):
            raise error
        await asyncio.sleep(error)

    there = node()
    there.agent = SimpleNamespace(ping=SimpleNamespace(remote=ping))
    answers[:] = [ActorUnavailableError("cut off", None), 10, 0]
    assert await there.lives()
    answers[:] = [ActorUnavailableError("cut off", None), ActorDiedError()]
    assert not await there.lives()
    monkeypatch.setattr(heartbeat, "UNREACHED_S", 0.2)
    answers[:] = [10] * 100
    assert not await there.lives()
    there.agent = None
    assert await there.lives(), "the driver's node has no agent"


def run_config(tmp_path: Path) -> RunConfig:
    for name in ("start", "state", "rival", "teacher", "judge"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(name)
        (tmp_path / name / "adapter_model.safetensors").write_bytes(b"weights")
        (tmp_path / name / "run_state.json").write_text("{}")
    (tmp_path / "state/learner.pt").write_bytes(b"state")
    rival = {"kind": "checkpoint", "path": str(tmp_path / "rival")}
    teacher = {"name": "ppo", "teacher": {"adapter": str(tmp_path / "teacher"), "weight": 0.1}}
    judge = {"kind": "llm", "args": {"engine": str(tmp_path / "judge"), "max_tokens": 2}}
    return parse(
        {
            "model": {"init": str(tmp_path / "start")},
            "learner": {"state": str(tmp_path / "state"), "algorithm": teacher},
            "opponents": {"fixed": [{"kind": "random"}, rival]},
            "judges": {"fair": judge},
        }
    )


async def test_node_gets_files_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.ray, "put", lambda value: value)
    config = run_config(tmp_path)
    files = Files(config, RunFolder(tmp_path / "run"))
    agent, there = NodeAgent(), node()

    async def call(method: str, *arguments: Any) -> Any:
        return getattr(agent, method)(*arguments)

    there.agent = SimpleNamespace(
        make=SimpleNamespace(remote=lambda: call("make")),
        put=SimpleNamespace(remote=lambda given: call("put", given)),
    )
    await files.give(there, "play")
    root = there.root
    assert root is not None and there.paths == (str(root / "modules"),)
    given = {path.relative_to(root).as_posix() for path in root.rglob("given/*/*")}
    assert given == {
        f"given/{name}/adapter_{file}"
        for name in ("judges.fair", "opponents.1")
        for file in ("config.json", "model.safetensors")
    }
    await files.give(there, "learn")
    far = files.config_at(there)
    assert (Path(far.model.init) / "adapter_config.json").read_text() == "start"
    assert far.learner.state is not None
    assert (Path(far.learner.state) / "learner.pt").read_bytes() == b"state"
    taught, judge = far.learner.algorithm.teacher.adapter, far.judges["fair"].args["engine"]
    assert (Path(str(taught)) / "adapter_config.json").read_text() == "teacher"
    assert (Path(str(judge)) / "adapter_config.json").read_text() == "judge"
    assert far.opponents.fixed[1].key == "checkpoint:rival", "its name is not from the new path"
    assert files.folder_at(there).root == root
    assert not [*root.rglob("run_state.json")]
    own = replace(there, root=None)
    assert files.config_at(own).model.init == config.model.init
    assert files.folder_at(own).root == tmp_path / "run"
    agent.close()


OWN = ("tests/", "bench/", "scripts/", "examples/")
"""Folders whose modules other tests may have loaded."""


def test_imported_user_modules_are_sent(here: Path) -> None:
    (here / "deep").mkdir()
    for name in ("my_games.py", "deep/__init__.py", "deep/more.py", "unused.py"):
        (here / name).write_text(f"# {name}\n")
    loaded = dict(sys.modules)
    for name in ("my_games", "deep", "deep.more"):
        path = name.replace(".", "/") + ("/__init__" if name == "deep" else "")
        module = ModuleType(name)
        module.__file__ = str(here / f"{path}.py")
        loaded[name] = module
    given = own_modules(loaded)
    assert {name for name in given if not name.startswith(OWN)} == {
        "my_games.py",
        "deep/__init__.py",
        "deep/more.py",
    }


class FakeGroups:
    """Stand-in for Ray's placement groups, which records them."""

    def __init__(self) -> None:
        self.made: list[tuple[dict[str, float], str]] = []

    def __call__(
        self, bundles: list[dict[str, float]], *, strategy: str, bundle_label_selector: Any
    ) -> int:
        assert strategy == "STRICT_PACK" and len(bundles) == 1
        self.made.append((bundles[0], bundle_label_selector[0]["ray.io/node-id"]))
        return len(self.made)


def reserved(
    monkeypatch: pytest.MonkeyPatch, *placements: Placement
) -> tuple[list[NodePlace], FakeGroups]:
    groups = FakeGroups()
    monkeypatch.setattr(placement, "placement_group", groups)
    return reserve(placements, {name: node(name) for name in ("a", "b")}), groups


def test_gpus_are_reserved_on_each_processs_node(monkeypatch: pytest.MonkeyPatch) -> None:
    places, groups = reserved(
        monkeypatch, Placement("a", ("0", "1")), Placement("b", ("0",)), Placement("b")
    )
    assert groups.made == [
        ({"CPU": 1, "GPU": 2}, "id of a"),
        ({"CPU": 1, "GPU": 1}, "id of b"),
        ({"CPU": 1}, "id of b"),
    ]
    assert [place.gpus for place in places] == [2, 1, 0]
    options = [place.options({"A": "1"}) for place in places]
    seen = [each["runtime_env"]["env_vars"].get("CUDA_VISIBLE_DEVICES") for each in options]
    assert seen == [None, None, ""], "Ray selects the GPUs; a process without GPUs sees none"


def test_processes_sharing_a_gpu_share_a_placement_group(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Placement("a", ("0",))
    places, groups = reserved(monkeypatch, card, Placement("b", ("0",)), card, card)
    assert groups.made == [({"CPU": 3, "GPU": 1}, "id of a"), ({"CPU": 1, "GPU": 1}, "id of b")]
    assert [place.group for place in places] == [1, 2, 1, 1]
    assert [place.gpus for place in places] == [0.3333, 1, 0.3333, 0.3333]
    refused("set actors.share_gpu to off", reserved, monkeypatch, Placement("a", ("0", "1")), card)


@every_row(
    "names, auth, changes, refused",
    (("10.0.0.1", "10.0.0.2"), "token", {}, False),
    (("10.0.0.1", "10.0.0.2"), "disabled", {}, True),
    (("10.0.0.1", "10.0.0.2"), "", {}, True),
    (("10.0.0.1",), "", {"insecure": True}, False),
    (("127.0.0.1", "127.0.0.1#a1b2c3"), "", {}, False),
)
def test_reachable_cluster_must_require_a_token(
    names: tuple[str, ...], auth: str, changes: dict[str, Any], refused: bool
) -> None:
    config = parse({"cluster": {"address": "10.0.0.1:6379", **changes}})
    there = [node(name, auth=auth) for name in names]
    if not refused:
        survey._check_token(config, there)
        return
    with pytest.raises(ConfigError, match=r"start it with RAY_AUTH_MODE=token .*cluster\.insecure"):
        survey._check_token(config, there)


def test_call_limits_exclude_several_nodes() -> None:
    endpoint = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    assert survey.counted_here(parse({"opponents": {"fixed": [endpoint]}})) is None
    capped = parse({"opponents": {"fixed": [endpoint | {"max_calls": 9}]}})
    assert "opponents.fixed.0: max_calls" in str(survey.counted_here(capped))


def test_screen_shows_nodes_gpus_versions_and_problems() -> None:
    config = parse({"cluster": {"address": "10.0.0.1:6379"}})
    own = found(machine=machine(2, packages={"torch": "2.13.0", "ray": "2.60.0"}))
    here = ClusterNode("10.0.0.1", "1", own, own.machine, is_drivers=True)
    idle = [f"10.0.0.4: {survey.why_idle({'Labels': {}}, config.cluster)}"]
    assert [*screen(config, [node(), here], ["node 10.0.0.3 has torch 2.12.0"], idle)] == [
        "cluster  10.0.0.1:6379: 2 nodes for this run · requires a token",
        "         10.0.0.2: 8 cores, 60 GiB",
        "         10.0.0.1 (here): 8 cores, 60 GiB, 2 x NVIDIA L4",
        "versions Python 3.11.7, ray 2.60.0, torch 2.13.0, unstable aaaaaaaa",
        "unused   10.0.0.4: Ray has no CPUs there",
        "rejected node 10.0.0.3 has torch 2.12.0",
    ]


def test_node_is_limited_to_free_ray_resources() -> None:
    own = machine(2)
    own = replace(own, gpus=(replace(own.gpus[0], free_bytes=1), own.gpus[1]))
    left = nodes._given_by_ray(own, {"CPU": 3.0, "GPU": 1.0}, "a")
    assert (left.cores, [gpu.id for gpu in left.gpus], left.node) == (3, ["1"], "a")
    raw = [
        {"NodeID": name, "Labels": labels, "Resources": {"CPU": cpus}}
        for name, labels, cpus in (("1", {"kind": "a"}, 4), ("2", {}, 4), ("3", {"kind": "a"}, 0))
    ]
    config = parse({"cluster": {"address": "auto", "labels": {"kind": "a"}}}).cluster
    assert [each["NodeID"] for each in nodes.fitting(raw, config)] == ["1"]


def test_unreachable_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cluster._reach(f"127.0.0.1:{port}")
    config = parse({"cluster": {"address": f"127.0.0.1:{port}"}}).cluster
    answers = pytest.raises(ConfigError, match=r"connection failed .*ray start --head")
    with answers, cluster.joined(config):
        raise AssertionError("the cluster was joined")
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    auto = parse({"cluster": {"address": "auto"}}).cluster
    with pytest.raises(ConfigError, match="ray://.* HOST:PORT"), cluster.joined(auto):
        raise AssertionError("the cluster was joined")


def test_ranks_use_the_interface_of_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from unstable.runtime.inside import _interfaces

    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    assert _interfaces("127.0.0.1") == {
        "GLOO_SOCKET_IFNAME": loopback,
        "NCCL_SOCKET_IFNAME": loopback,
    }
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    assert _interfaces("127.0.0.1") == {"GLOO_SOCKET_IFNAME": loopback}
    assert _interfaces("192.0.2.77") == {}
    assert "GLOO_SOCKET_IFNAME" not in os.environ
