"""The learner as the loop calls it: ranks act as one, failures raise, GPU memory is freed."""

import asyncio
import ipaddress
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from ray import ObjectRef

from tests.helpers.learners import VOCAB, packed_batch, unlike_batch
from tests.helpers.models import random_adapter, tiny_model
from unstable.config import CustomAlgorithmConfig, ModelConfig, RunConfig, RunFailedError
from unstable.learners.algorithm import Algorithm, Loss, Tokens
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.learner import PolicyLearner
from unstable.models.adapters import read_adapter
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.runtime import learner_ranks
from unstable.runtime.cluster import cluster
from unstable.runtime.learner_ranks import RemoteLearner
from unstable.runtime.local import LocalLearner

RANKS = 2
HERE = [Placement(LOOPBACK)] * RANKS


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    with cluster(RANKS):
        yield


def config_of(model: ModelConfig, **changes: Any) -> RunConfig:
    learner = {"batch_size": 8, "micro_batch_size": 2}
    return RunConfig.model_validate(
        {"model": model.model_dump() | {"init": "fresh"}}
        | {"learner": learner | changes.pop("learner", {})}
        | changes
    )


class Troubled(Algorithm):
    """A user's algorithm that raises or hangs on rank 1, in the update of a version."""

    config: CustomAlgorithmConfig

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        self.comes = batch.batch.version == self.config.args["version"]
        return rewards_S

    def loss(self, tokens: Tokens) -> Loss:
        if self.comes and torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            if self.config.args["trouble"] == "raise":
                raise ZeroDivisionError("error of rank 1")
            time.sleep(600)
        gains_N = tokens.advantages_N * tokens.logprobs_N / tokens.normalizers_N
        return Loss(-gains_N.sum(), torch.ones_like(tokens.logprobs_N))


class Crowded(Algorithm):
    """A user's algorithm for which rank 1 has memory for few tokens only."""

    def loss(self, tokens: Tokens) -> Loss:
        together = torch.distributed.is_initialized() and torch.distributed.get_rank() == 1
        if together and len(tokens.logprobs_N) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        gains_N = tokens.advantages_N * tokens.logprobs_N / tokens.normalizers_N
        return Loss(-gains_N.sum(), torch.ones_like(tokens.logprobs_N))

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        return rewards_S


def troubled(model: ModelConfig, trouble: str, version: int) -> RunConfig:
    """Config of two ranks of an algorithm with this trouble."""
    args = {"trouble": trouble, "version": version}
    algorithm = {"name": f"{__name__}:Troubled", "args": args}
    return config_of(model, learner={"num": RANKS, "algorithm": algorithm})


def rank_processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "LearnerProcess" in " ".join(child.cmdline())]


def reachable_from_elsewhere() -> list[str]:
    """Return non-loopback addresses that this process and its children listen at."""
    family = {process.pid for process in psutil.Process().children(recursive=True)}
    listening = [
        each.laddr.ip
        for each in psutil.net_connections("inet")
        if each.status == psutil.CONN_LISTEN and each.pid in family | {os.getpid()}
    ]
    assert len(listening) > 3  # of Ray and of the ranks
    addresses = [ipaddress.ip_address(ip.removeprefix("::ffff:")) for ip in listening]
    return [str(address) for address in addresses if not address.is_loopback]


def assert_ended(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


@pytest.mark.slow
async def test_ranks_act_as_one_learner(ray: None, model: ModelConfig, tmp_path: Path) -> None:
    config = troubled(model, "hang", version=2)
    folder = RunFolder(tmp_path)
    remote = RemoteLearner(config, folder, HERE, threads=RANKS)
    await remote.start()
    family = rank_processes()
    assert len(family) == RANKS
    assert reachable_from_elsewhere() == []
    alone = PolicyLearner(config.model, config.learner, updates=8, max_tokens=16, seed=config.seed)

    batch = unlike_batch(0)
    samples = [sample.tokens for sample in batch.samples]
    update, expected = await remote.update(packed_batch(batch)), alone.update(batch)
    assert update.version == 1 and update.advantages == expected.advantages
    assert update.metrics["learn/loss"] == pytest.approx(expected.metrics["learn/loss"], rel=1e-4)
    held = await remote.hold()
    imitated = await remote.imitate(samples)
    adapter = await held.adapter()  # of the held version
    await held.save()
    assert isinstance(adapter, ObjectRef), "the adapter is not sent to the driver"
    assert await adapter == read_adapter(folder.checkpoint(1), "main@1")
    assert imitated.version == 2
    await remote.restore(1)  # weights of all ranks, not the version number
    restored = await remote.imitate(samples)
    assert restored.version == 3
    assert restored.metrics["learn/loss"] == pytest.approx(imitated.metrics["learn/loss"], rel=1e-4)
    await remote.load(1)
    await remote.scale_rate(0.1)
    alone.scale_rate(0.1)
    imitated_again, expected = await remote.imitate(samples), alone.imitate(samples)
    assert imitated_again.metrics["learn/loss"] == imitated.metrics["learn/loss"]
    assert imitated.metrics["learn/loss"] == pytest.approx(expected.metrics["learn/loss"], rel=1e-4)
    scored = np.concatenate(await remote.logprobs(samples))
    assert scored == pytest.approx(np.concatenate(alone.logprobs(samples)), abs=1e-4)
    adapter = random_adapter(tiny_model(vocab=VOCAB), "other", seed=3)
    scored = np.concatenate(await remote.logprobs_under(adapter, samples))
    assert scored == pytest.approx(np.concatenate(alone.logprobs_under(adapter, samples)), abs=1e-4)

    # Rank 0 waits for rank 1, which breaks the connection when it dies.
    lost = asyncio.ensure_future(remote.update(packed_batch(unlike_batch(2))))
    await asyncio.sleep(0.5)
    assert not lost.done()
    family[1].send_signal(signal.SIGKILL)
    with pytest.raises(RunFailedError, match="the learner's process died in 'update'"):
        await asyncio.wait_for(lost, timeout=300)
    assert_ended(family)


@pytest.mark.slow
@pytest.mark.fault("a learner rank hangs or raises")
async def test_error_of_one_rank_is_raised_and_ends_all_ranks(
    ray: None, model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_ranks, "GRACE_S", 0.5)
    config = troubled(model, "raise", version=0)
    remote = RemoteLearner(config, RunFolder(tmp_path), HERE, threads=RANKS)
    await remote.start()
    family = rank_processes()
    assert len(family) == RANKS
    with pytest.raises(ZeroDivisionError, match="error of rank 1"):
        await asyncio.wait_for(remote.update(packed_batch(unlike_batch(0))), timeout=300)
    assert_ended(family)


@pytest.mark.slow
@pytest.mark.tables("learners rotating", 1)
@pytest.mark.fault("learner GPU out of memory")
async def test_sharded_ranks_restart_after_out_of_memory_on_one(
    ray: None, model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks restart and catch up after rank 1 fails to join a gather that rank 0 waits in."""
    monkeypatch.setattr(learner_ranks, "GRACE_S", 0.5)
    options = {"algorithm": {"name": f"{__name__}:Crowded"}, "micro_batch_size": 4}
    config = config_of(model, learner={"num": RANKS, "parallel": "fsdp", **options})
    remote = RemoteLearner(config, RunFolder(tmp_path), HERE, threads=RANKS)
    alone = PolicyLearner(config.model, config.learner, updates=8, max_tokens=16, seed=config.seed)
    await remote.start()
    family = rank_processes()
    samples = [sample.tokens for sample in unlike_batch(0).samples]
    assert (await remote.imitate(samples)).version == alone.imitate(samples).version == 1
    for version in (1, 2):
        batch = unlike_batch(version)
        update = await asyncio.wait_for(remote.update(packed_batch(batch)), timeout=120)
        expected = alone.update(batch)
        assert update.version == expected.version == version + 1
        for name in ("learn/loss", "learn/grad_norm"):
            assert update.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3)
    assert_ended(family)
    again = rank_processes()
    assert len(again) == RANKS and not {p.pid for p in again} & {p.pid for p in family}
    scored = np.concatenate(await remote.logprobs(samples))
    assert scored == pytest.approx(np.concatenate(alone.logprobs(samples)), abs=1e-4)
    learner_ranks.end(remote._ranks)


@pytest.mark.parametrize("share", ["sleep", "split"])
async def test_calls_free_gpu_memory_for_a_sleeping_engine(
    share: str, model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call empties CUDA's cache at its end, unless learner and engine split the GPU."""
    config = config_of(model, actors={"share_gpu": share})
    local = LocalLearner(config, RunFolder(tmp_path))
    cached: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", cached.clear)
    local.learner.policy.register_forward_hook(lambda *_: cached.append("activations"))
    batch = unlike_batch(0)
    samples = [sample.tokens for sample in batch.samples]
    adapter = random_adapter(tiny_model(vocab=VOCAB), "other", seed=3)
    calls = {
        "update": lambda: local.update(packed_batch(batch)),
        "imitate": lambda: local.imitate(samples),
        "logprobs": lambda: local.logprobs(samples),
        "logprobs_under": lambda: local.logprobs_under(adapter, samples),
        "hold": local.hold,
        "load": lambda: local.load(2),
        "restore": lambda: local.restore(2),
    }
    for name, call in calls.items():
        cached[:] = ["gradients"]
        await call()
        assert bool(cached) == (share == "split"), name
        if name == "hold":
            await local.save(2)
