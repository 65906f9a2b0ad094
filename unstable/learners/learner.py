"""The learner: batches in, versions of the policy out; saves and restores all that it is."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unstable.config import LearnerConfig, ModelConfig
from unstable.learners.algorithm import Algorithm, StepReport
from unstable.learners.algorithms import algorithm_class
from unstable.learners.attention import ATTENTION
from unstable.learners.metrics import batch_metrics, step_metrics
from unstable.learners.mini_batches import MiniBatches
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.policy import Policy
from unstable.learners.ranks import ALONE, Ranks, shard
from unstable.learners.second_lora import SecondLoRA
from unstable.models.adapters import (
    attach_lora,
    export_adapter,
    load_weights,
    read_adapter,
    write_adapter,
)
from unstable.models.base import load_model
from unstable.seeds import derive_seed
from unstable.types import Adapter, Batch, Sample, Update, policy_player

STATE_FILE = "learner.pt"
RUN_STATE_FILE = "run_state.json"


class Learner:
    """The owner of the trained weights, on the GPU if there is one.

    `adapter` is the start, none a fresh LoRA drawn from `seed`; `updates` is how many the run will
    make, for the schedule; `max_tokens` is the longest completion, for the constant loss norm.
    """

    def __init__(
        self,
        model: ModelConfig,
        learner: LearnerConfig,
        *,
        updates: int,
        max_tokens: int,
        seed: int,
        adapter: Adapter | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = learner
        self.seed = seed
        self.version = 0
        self.bad_updates = 0  # in a row
        algorithm = algorithm_class(learner.algorithm)
        base = load_model(model, attention=ATTENTION)
        self.model = attach_lora(base, model.adapter, derive_seed(seed, "lora"))
        if adapter is not None:
            load_weights(self.model, adapter)
        self.policy = Policy(self.model)
        if learner.gradient_checkpointing == "on":
            self.policy.recompute_activations()
        if learner.compile:
            self.policy.compile_layers()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if learner.parallel == "fsdp" and ranks.count > 1:
            shard(self.policy, device)
        else:
            self.policy.to(device)
        steps = learner.epochs * learner.steps_per_batch
        self.optimizer = PolicyOptimizer(self.policy.parameters(), learner, updates * steps)
        self.algorithm: Algorithm = algorithm(
            learner.algorithm,
            self.policy,
            self.optimizer,
            mini_batches=MiniBatches(learner.mini_batch_size, learner.mini_batch_tokens, ranks),
            max_tokens=max_tokens,
            steps_per_update=steps,
        )

    def update(self, batch: Batch) -> Update:
        """Train on the batch, which makes the next version.

        Raises `FloatingPointError` when, `max_bad_updates` times in a row, loss or gradient was not
        finite in any step. A version that such an update makes is the one before it again.
        """
        assert batch.version == self.version, f"batch {batch.version}, learner {self.version}"
        assert len(batch.samples) >= self.config.steps_per_batch
        started = time.perf_counter()
        prepared = self.algorithm.prepare(batch.samples)
        units = prepared.units
        num_steps = min(self.config.steps_per_batch, len(units))
        shuffle = np.random.default_rng(derive_seed(self.seed, "shuffle", self.version))
        reports: list[StepReport] = []
        for _ in range(self.config.epochs if units else 0):
            order = shuffle.permutation(len(units))
            for part in np.array_split(order, num_steps):
                chosen = np.concatenate([units[i] for i in part])
                reports.append(self.algorithm.step(prepared, chosen))
        if reports:
            self._count_bad(reports[-1].loss, all(report.grad_norm is None for report in reports))
        self.version += 1
        seconds = time.perf_counter() - started
        trained = [sample for report in reports for sample in report.samples]
        tokens = sum(len(sample.prompt_ids) + len(sample.token_ids) for sample in trained)
        metrics = {
            **batch_metrics(batch, prepared),
            **step_metrics(reports, self.config.algorithm.importance_cap),
            **self.algorithm.metrics(),
            "learn/tokens_per_second": tokens / seconds,
        }
        return Update(
            version=self.version, metrics=metrics, advantages=prepared.advantages_S.tolist()
        )

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Of the samples' tokens, in nats, under the policy as it is."""
        return [logprobs_T.tolist() for logprobs_T in self.algorithm.logprobs(samples)]

    def logprobs_under(self, adapter: Adapter, samples: Sequence[Sample]) -> list[list[float]]:
        """The same with another adapter in the policy's place."""
        with SecondLoRA(self.policy).in_place():
            load_weights(self.model, adapter)
            return self.logprobs(samples)

    def _count_bad(self, loss: float, is_bad: bool) -> None:
        self.bad_updates = self.bad_updates + 1 if is_bad else 0
        if self.bad_updates == self.config.max_bad_updates:
            raise FloatingPointError(
                f"loss or gradient not finite in {self.bad_updates} updates in a row (the last "
                f"loss: {loss}); lower learner.learning_rate or learner.grad_clip; the last "
                "checkpoint holds the last good weights"
            )

    def save(self, folder: Path, run_state: dict[str, Any]) -> Adapter:
        """Write the version to `folder`, whole or not at all, and return its adapter.

        The folder holds the adapter in fp32, this learner's state, and `run_state` as JSON; raises
        `FileExistsError` rather than write over anything. Every random choice derives from the
        seed and the version, so there is no random state to keep.
        """
        if folder.exists():
            raise FileExistsError(f"checkpoint {folder} is there already; nothing is overwritten")
        adapter = export_adapter(self.model, policy_player(self.version))
        scratch = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(scratch, ignore_errors=True)  # what a killed process has left
        scratch.mkdir(parents=True)
        write_adapter(adapter, scratch)
        state = {
            "version": self.version,
            "bad_updates": self.bad_updates,
            "optimizer": self.optimizer.state_dict(),
            "algorithm": self.algorithm.state_dict(),
        }
        torch.save(state, scratch / STATE_FILE)
        (scratch / RUN_STATE_FILE).write_text(json.dumps(run_state), encoding="utf-8")
        for path in (scratch / STATE_FILE, scratch / RUN_STATE_FILE, scratch):
            _sync(path)
        scratch.rename(folder)
        _sync(folder.parent)
        return adapter

    def load(self, folder: Path) -> dict[str, Any]:
        """Become what `save` wrote to `folder`; returns the run state given to it."""
        load_weights(self.model, read_adapter(folder, folder.name))
        state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
        self.version = state["version"]
        self.bad_updates = state["bad_updates"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.algorithm.load_state_dict(state["algorithm"])
        run_state: dict[str, Any] = json.loads(
            (folder / RUN_STATE_FILE).read_text(encoding="utf-8")
        )
        return run_state


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
