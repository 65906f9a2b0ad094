"""The learner: batches in, versions of the policy out; saves and restores its whole state.

`PolicyLearner.update` is an update from its batch to its metrics, `PolicyLearner._step` an
optimizer step from its samples to `backward`. `algorithm.Algorithm` defines the parts that differ
between algorithms.
"""

import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import ActionCriticConfig, AlgorithmConfig, LearnerConfig, ModelConfig
from unstable.learners.action_critic import ActionCritic
from unstable.learners.algorithm import Imitation
from unstable.learners.algorithms import algorithm_class
from unstable.learners.batch import Examples, FlatBatch, Ints
from unstable.learners.columns import Columns, Layout
from unstable.learners.critic import Critic
from unstable.learners.metrics import (
    ENTROPIES,
    LOGPROBS,
    RATIOS,
    Metrics,
    StepReport,
    batch_metrics,
    is_far,
    old_metrics,
    role_metrics,
    step_metrics,
)
from unstable.learners.micro_batches import MicroBatches, made_ahead
from unstable.learners.model.load import load_policy
from unstable.learners.model.token_table import TokenTable
from unstable.learners.model.trained import TrainedCopy
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.preparation import Pass, Passes, Preparation, PreparedBatch
from unstable.learners.ranks import ALONE, Ranks
from unstable.learners.reference import OtherPolicies
from unstable.learners.regularization import (
    Coefficients,
    coefficient_metrics,
    coefficients_at,
    regularized,
)
from unstable.learners.scoring import Scorer
from unstable.learners.value_models import AdapterValues, ValueModel, ValueNetwork
from unstable.models.checkpoint import Snapshot, copied, fitting, read_average, read_checkpoint
from unstable.types import Adapter, Batch, MeanLoss, PlayerId, TokenSample, Update
from unstable.types.seeds import derive_seed


class PolicyLearner:
    """The owner of the trained weights, on the GPU if there is one.

    Training starts from `adapter`, or from a fresh LoRA drawn from `seed`. The schedules cover the
    run's `updates` and those of runs before and after it. `max_tokens` is the longest completion,
    for the constant loss norm.
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
        self.updates = learner.updates_before + updates + learner.updates_after
        self.max_tokens = max_tokens
        self.version = 0
        self.bad_updates = 0  # consecutive
        self.algorithm = algorithm_class(learner.algorithm)(learner.algorithm)
        self.policy = load_policy(model, learner, seed, adapter, ranks)
        self.optimizer = PolicyOptimizer(
            self.policy.trained.parameters,
            learner,
            self.updates * learner.steps_per_update,
            learner.updates_before * learner.steps_per_update,
        )
        self.micro_batches = MicroBatches.of(
            learner,
            ranks,
            on_gpu=self.policy.device.type == "cuda",
            padded=self.policy.padded,
        )
        self.scorer = Scorer(self.policy, self.micro_batches)
        algorithm = learner.algorithm
        self.others = OtherPolicies.of(self.policy, algorithm, self.scorer)
        self.reference = self.others.reference
        self.average = None if learner.ema is None else TrainedCopy(self.policy.trained)
        critic = getattr(algorithm, "critic", None)
        self.critic: Critic | ActionCritic | None = None
        if isinstance(critic, ActionCriticConfig):
            self.critic = ActionCritic(critic, self._value_model(critic), seed)
        elif critic is not None:
            self.critic = Critic(critic, self.policy, self.optimizer)
        self._prepare = Preparation(learner, self.scorer, self.others, self.critic)

    def _value_model(self, critic: ActionCriticConfig) -> ValueModel:
        if critic.kind == "adapter":
            return AdapterValues(self.policy, self.scorer, self.micro_batches)
        return ValueNetwork(derive_seed(self.seed, "value network") % 2**31)

    def update(self, batch: Batch) -> Update:
        """Train on the batch, which makes the next version.

        Raises `FloatingPointError` after `max_bad_updates` updates in a row without a finite step.
        Such an update makes a version with unchanged weights.
        """
        assert batch.version == self.version, f"batch {batch.version}, learner {self.version}"
        started = time.perf_counter()
        flat = FlatBatch(batch)
        prepared = self._prepare(flat, self.algorithm, self.coefficients)
        reports: list[StepReport] = []
        for chosen_C in self._steps(prepared):
            reports.append(self._step(prepared, chosen_C))
            if is_far(prepared, reports[-1], self.config.max_kl):
                break
        metrics = {
            **batch_metrics(flat, prepared.rewards_S, prepared.advantages_S),
            **role_metrics(prepared.examples, reports),
            **old_metrics(prepared, reports, self.config.steps_per_batch),
            **coefficient_metrics(self.config.algorithm, self.coefficients),
            **self.algorithm.metrics(),
            **({} if self.critic is None else self.critic.metrics),
        }
        return self._finish(started, prepared, reports, metrics)

    def imitate(self, samples: Sequence[TokenSample]) -> Update:
        """One optimizer step of maximum likelihood on the answers, which makes the next version."""
        started = time.perf_counter()
        everything, ones_S = np.arange(len(samples)), np.ones(len(samples))
        roles_S, table = [("", 0)] * len(samples), TokenTable.of(samples)
        layout = Layout(table.scored_S, self.policy.device)
        prepared = PreparedBatch(
            examples=Examples.made(samples, roles_S, everything.tolist(), ones_S.tolist()),
            algorithm=Imitation(AlgorithmConfig(name="imitation")),
            coefficients=Coefficients(kl_reward=0.0, kl_loss=0.0, entropy=0.0),
            table=table,
            layout=layout,
            atoms=[everything],
            rewards_S=ones_S,
            advantages_S=ones_S,
            advantages_N=layout.repeated(ones_S),
        )
        report = self._step(prepared, self._shuffle().permutation(len(samples)))
        metrics: Metrics = {"learn/tokens_trained": float(layout.length)}
        return self._finish(started, prepared, [report], metrics)

    def loss_on(self, batch: Batch) -> MeanLoss:
        """Compute the loss of one optimizer step on the whole batch, without the step.

        Weights, baselines and counters stay unchanged.
        """
        metrics = None if self.critic is None else self.critic.metrics
        # A copy of the algorithm, since reading a baseline updates it.
        algorithm = deepcopy(self.algorithm)
        prepared = self._prepare(FlatBatch(batch), algorithm, self.coefficients, learns=False)
        if self.critic is not None and metrics is not None:
            self.critic.metrics = metrics
        if not prepared.atoms:
            return MeanLoss(0.0, 0)
        chosen_C = np.concatenate(prepared.atoms)
        _, total = self.micro_batches.retried(partial(self._accumulate, prepared, chosen_C))
        self.optimizer.clear()
        self.micro_batches.ranks.sum_([total])
        tokens = sum(prepared.layout.sizes[index] for index in chosen_C)
        return MeanLoss(float(total), tokens)

    @property
    def _made(self) -> int:
        """Updates so far, those before the run included."""
        return self.config.updates_before + self.version

    @property
    def coefficients(self) -> Coefficients:
        """Coefficients of KL and entropy in the next update."""
        return coefficients_at(self.config.algorithm, self._made + 1, self.updates)

    def _steps(self, batch: PreparedBatch) -> Iterator[Ints]:
        """Yield the indices of the examples of each optimizer step, epoch by epoch."""
        shuffle = self._shuffle()
        num_steps = min(self.config.steps_per_batch, len(batch.atoms))
        for _ in range(self.config.epochs if batch.atoms else 0):
            order = shuffle.permutation(len(batch.atoms))
            for part in np.array_split(order, num_steps):
                yield np.concatenate([batch.atoms[i] for i in part])

    def _step(self, batch: PreparedBatch, chosen_C: Ints) -> StepReport:
        """Make an optimizer step on the chosen examples; every token has its sample's advantage."""
        columns, total = self.micro_batches.retried(partial(self._accumulate, batch, chosen_C))
        self.micro_batches.ranks.sum_([total, *self.optimizer.own_gradients(), *columns.values()])
        learning_rate = self.optimizer.learning_rate
        stepped = self.optimizer.step(total)
        counts_C = batch.examples.counts_S[chosen_C]
        return StepReport(chosen_C, counts_C, *stepped, learning_rate, columns)

    def _accumulate(self, batch: PreparedBatch, chosen_C: Ints) -> tuple[Columns, Tensor]:
        """Accumulate this rank's gradients of a step; returns its columns and share of the loss."""
        self.optimizer.clear()  # gradients of an attempt that ran out of memory
        passes = Passes(batch, chosen_C, self.max_tokens, self.policy)
        columns, total = Columns(passes.layout), torch.zeros(1, device=self.policy.device)
        micro_batches = self.micro_batches(passes.table, passes.atoms)
        for _, each in made_ahead(micro_batches, passes.make, threaded=self.micro_batches.ahead):
            total += self._backward(batch, each, columns, len(chosen_C))
        return columns, total

    def _backward(
        self, batch: PreparedBatch, each: Pass, columns: Columns, num_turns: int
    ) -> Tensor:
        """Backpropagate a pass, fill its columns; returns its share of the loss of `num_turns`."""
        aims = batch.aims_at(each.rows_N)
        scores = self.policy(each.inputs, entropy=batch.entropy, aims=aims)
        tokens = batch.tokens(each, scores)
        logprobs_N, entropies_N = scores.logprobs_N.detach(), scores.entropies_N
        critic = self.critic if isinstance(self.critic, Critic) else None
        states_SD = None if critic is None else scores.states_SD.detach()
        del scores, aims  # frees their hidden states
        cap = batch.algorithm.config.importance_cap
        loss = regularized(batch.algorithm.loss(tokens), tokens, batch.coefficients, cap)
        weight = float(each.counts)
        value = weight * loss.value
        value.backward()
        value = value.detach()
        if critic is not None and states_SD is not None:  # the policy's graph is freed
            assert batch.targets_S is not None
            samples = [batch.examples.samples[index] for index in each.chosen]
            targets_S = batch.targets_S[each.chosen]
            value += critic.backward(
                samples, targets_S, states_SD, weight=weight, num_turns=num_turns
            )
        figures = {LOGPROBS: logprobs_N, RATIOS: loss.ratios_N, ENTROPIES: entropies_N}
        figures |= {**loss.means, **loss.turn_means}
        columns.put(each.places_N, figures, each.counts)
        columns.of_turns |= loss.turn_means.keys()
        return value

    def _finish(
        self,
        started: float,
        batch: PreparedBatch,
        reports: Sequence[StepReport],
        metrics: Metrics,
    ) -> Update:
        """Return the update after its steps; counts updates without a finite step."""
        refusals = [report.refusal for report in reports if report.refusal is not None]
        if reports:
            self.bad_updates = self.bad_updates + 1 if len(refusals) == len(reports) else 0
        if self.bad_updates == self.config.max_bad_updates:
            raise FloatingPointError(
                f"all optimizer steps were skipped in {self.bad_updates} updates in a row (last: "
                f"{refusals[-1]}); lower learner.learning_rate or learner.grad_clip; the last "
                "checkpoint has the last finite weights"
            )
        self.version += 1
        self.optimizer.steps = self._made * self.config.steps_per_update  # max_kl may omit some
        if self.reference is not None:
            self.reference.after_update(self._made)
        if self.average is not None and self.config.ema is not None:
            self.average.follow(self.config.ema)
        seconds = time.perf_counter() - started
        tokens = sum(float(batch.table.lengths_S[report.chosen_C].sum()) for report in reports)
        speed = {
            "learn/tokens_per_second": tokens / seconds,
            "learn/out_of_memory": float(self.micro_batches.take_halvings()),
        }
        return Update(
            version=self.version,
            metrics={**metrics, **step_metrics(reports), **speed},
            advantages=batch.advantages_S.tolist(),
            refusals=refusals,
        )

    def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        """Return log-probabilities of the samples' tokens, in nats, under the current policy."""
        return [logprobs_T.tolist() for logprobs_T in self.scorer.logprobs(samples)]

    def logprobs_under(self, adapter: Adapter, samples: Sequence[TokenSample]) -> list[list[float]]:
        """Return log-probabilities of the samples' tokens, in nats, under another adapter."""
        other = TrainedCopy(self.policy.trained)
        other.load(adapter)
        with other.in_place():
            return self.logprobs(samples)

    def _shuffle(self) -> np.random.Generator:
        """Return the random generator of the next update."""
        return np.random.default_rng(derive_seed(self.seed, "shuffle", self.version))

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rate by `factor` from now on, in addition to its schedule.

        Factors multiply each other. They are part of the optimizer's state and so of a checkpoint.
        """
        self.optimizer.scale *= factor

    def snapshot(self) -> Snapshot:
        """Copy the version to the CPU; later training does not change the copy.

        Random choices derive from the seed and the version, so no random state is saved.
        """
        name = PlayerId.policy(self.version).name
        algorithm = self.algorithm.state_dict()
        if self.reference is not None:
            algorithm["reference"] = self.reference.state_dict()
        if self.critic is not None:
            algorithm["critic"] = self.critic.state_dict()
        state = {
            "version": self.version,
            "bad_updates": self.bad_updates,
            "optimizer": self.optimizer.state_dict(),
            "algorithm": algorithm,
        }
        return Snapshot(
            adapter=self.policy.trained.export(name),
            average=None if self.average is None else self.average.export(f"average of {name}"),
            state=copied(state),
        )

    def save(self, folder: Path) -> Adapter:
        """Write the version to `folder`, whole or not at all, and return its adapter.

        Raises `FileExistsError` if the folder exists.
        """
        snapshot = self.snapshot()
        snapshot.write(folder)
        return snapshot.adapter

    def load(self, folder: Path) -> None:
        """Load everything that `save` wrote to `folder`."""
        state = self._take(folder)
        self.version = state["version"]
        self.bad_updates = state["bad_updates"]
        with fitting(folder):
            self.optimizer.load_state_dict(state["optimizer"])

    def restore(self, folder: Path) -> None:
        """Restore weights, AdamW's moments and the algorithm's state that `save` wrote.

        The run's counters continue: `version`, so that the next one has a new number, the step in
        the schedules, the factors of `scale_rate`, and bad updates in a row.
        """
        state = self._take(folder)
        with fitting(folder):
            self.optimizer.load_moments(state["optimizer"])

    def _take(self, folder: Path) -> dict[str, Any]:
        """Load all weights and the algorithm's state; returns the learner's whole state."""
        adapter, state = read_checkpoint(folder)
        self.policy.trained.load(adapter)
        if self.average is not None:
            self.average.load(read_average(folder))
        algorithm = state["algorithm"]
        with fitting(folder):
            self.algorithm.load_state_dict(algorithm)
            if self.reference is not None:
                self.reference.load_state_dict(algorithm["reference"])
            if self.critic is not None:
                self.critic.load_state_dict(algorithm["critic"])
        return state
