"""The learner: batches in, versions of the policy out; saves and restores all that it is.

`Learner.update` is an update from its batch to its metrics, `Learner._step` an optimizer step from
its samples to `backward`. What differs between algorithms is asked of `algorithm.Algorithm`.
"""

import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import AlgorithmConfig, LearnerConfig, ModelConfig
from unstable.learners.ahead import made_ahead
from unstable.learners.algorithm import Algorithm, Imitation
from unstable.learners.algorithms import algorithm_class, named_algorithm
from unstable.learners.batch import FlatBatch, Floats, Ints
from unstable.learners.columns import Columns, Layout
from unstable.learners.critic import Critic, StateCritic
from unstable.learners.freezing import Freezing, Frozen
from unstable.learners.frozen import FrozenBatch
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
from unstable.learners.micro_batches import MicroBatches
from unstable.learners.model.load import load_policy
from unstable.learners.model.trained import TrainedCopy
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.passes import Pass, Passes
from unstable.learners.ranks import ALONE, Ranks
from unstable.learners.reference import Others
from unstable.learners.regularization import (
    Coefficients,
    coefficient_metrics,
    coefficients_at,
    regularized,
)
from unstable.learners.scoring import Scorer
from unstable.models.checkpoint import Snapshot, copied, fitting, read_average, read_checkpoint
from unstable.types import Adapter, Batch, MeanLoss, PlayerId, TokenSample, Update
from unstable.types.seeds import derive_seed


class Learner:
    """The owner of the trained weights, on the GPU if there is one.

    `adapter` is the start, none a fresh LoRA drawn from `seed`; `updates` is how many the run will
    make, for the schedules, beside those before and after it; `max_tokens` is the longest
    completion, for the constant loss norm.
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
        self.bad_updates = 0  # in a row
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
        self.others = Others.of(self.policy, algorithm, self.scorer)
        self.reference = self.others.reference
        self.average = None if learner.ema is None else TrainedCopy(self.policy.trained)
        critic = getattr(algorithm, "critic", None)
        self.critic: Critic | None = None
        if critic is not None:
            named = named_algorithm(algorithm.name)
            kind: type[Critic] = getattr(named, "critic_class", StateCritic)
            self.critic = kind(critic, self.policy, self.optimizer)
        self._freezing = Freezing(learner, self.scorer, self.others, self.critic)

    def update(self, batch: Batch) -> Update:
        """Train on the batch, which makes the next version.

        Raises `FloatingPointError` when, `max_bad_updates` times in a row, each step was refused
        for what is not finite. A version that such an update makes is the one before it again.
        """
        assert batch.version == self.version, f"batch {batch.version}, learner {self.version}"
        started = time.perf_counter()
        flat = FlatBatch(batch)
        rewards_S, advantages_S, examples, frozen = self._freeze(flat, self.algorithm)
        reports: list[StepReport] = []
        for chosen_C in self._steps(frozen):
            reports.append(self._step(frozen, chosen_C))
            if is_far(frozen, reports[-1], self.config.max_kl):
                break
        metrics = {
            **batch_metrics(flat, rewards_S, advantages_S),
            **role_metrics(examples, reports),
            **old_metrics(frozen, reports, self.config.steps_per_batch),
            **coefficient_metrics(self.config.algorithm, self.coefficients),
            **self.algorithm.metrics(),
            **({} if self.critic is None else self.critic.metrics),
        }
        return self._finish(started, frozen, reports, metrics, advantages_S)

    def imitate(self, samples: Sequence[TokenSample]) -> Update:
        """One optimizer step of maximum likelihood on the answers, which makes the next version."""
        started = time.perf_counter()
        layout, ones_S = self._layout(samples), np.ones(len(samples))
        everything = np.arange(len(samples))
        frozen = FrozenBatch(
            samples=samples,
            algorithm=Imitation(AlgorithmConfig(name="imitation")),
            coefficients=Coefficients(kl_reward=0.0, kl_loss=0.0, entropy=0.0),
            layout=layout,
            sequences_S=everything,
            atoms=[everything],
            advantages_N=layout.repeated(ones_S),
        )
        report = self._step(frozen, self._shuffle().permutation(len(samples)))
        metrics: Metrics = {"learn/tokens_trained": float(layout.length)}
        return self._finish(started, frozen, [report], metrics, ones_S)

    def loss_on(self, batch: Batch) -> MeanLoss:
        """What the loss of one optimizer step on all of the batch is; the step is not made.

        Nothing is learned of it, and no state is another afterwards: neither weights, baselines nor
        counters.
        """
        metrics = None if self.critic is None else self.critic.metrics
        # A baseline moves as it is read.
        *_, frozen = self._freeze(FlatBatch(batch), deepcopy(self.algorithm))
        if self.critic is not None and metrics is not None:
            self.critic.metrics = metrics
        if not frozen.atoms:
            return MeanLoss(0.0, 0)
        chosen_C = np.concatenate(frozen.atoms)
        _, total = self._gradients(frozen, chosen_C)
        self.optimizer.clear()
        self.micro_batches.ranks.sum_([total])
        tokens = sum(frozen.layout.sizes[index] for index in chosen_C)
        return MeanLoss(float(total), tokens)

    @property
    def _made(self) -> int:
        """Updates so far, those before the run included."""
        return self.config.updates_before + self.version

    @property
    def coefficients(self) -> Coefficients:
        """What KL and entropy count in the next update."""
        return coefficients_at(self.config.algorithm, self._made + 1, self.updates)

    def _freeze(self, flat: FlatBatch, algorithm: Algorithm) -> Frozen:
        return self._freezing.freeze(flat, algorithm, self.coefficients)

    def _steps(self, frozen: FrozenBatch) -> Iterator[Ints]:
        """Indices of the samples of each optimizer step, epoch by epoch."""
        shuffle = self._shuffle()
        num_steps = min(self.config.steps_per_batch, len(frozen.atoms))
        for _ in range(self.config.epochs if frozen.atoms else 0):
            order = shuffle.permutation(len(frozen.atoms))
            for part in np.array_split(order, num_steps):
                yield np.concatenate([frozen.atoms[i] for i in part])

    def _step(self, frozen: FrozenBatch, chosen_C: Ints) -> StepReport:
        """One optimizer step on the chosen samples; every token has its sample's advantage."""
        columns, total = self._gradients(frozen, chosen_C)
        self.micro_batches.ranks.sum_([total, *self.optimizer.own_gradients(), *columns.values()])
        learning_rate = self.optimizer.learning_rate
        stepped = self.optimizer.step(total)
        return StepReport(chosen_C, *stepped, learning_rate, columns)

    def _gradients(self, frozen: FrozenBatch, chosen_C: Ints) -> tuple[Columns, Tensor]:
        """As `_accumulate`, in smaller micro-batches where memory does not suffice."""
        while True:
            try:
                return self._accumulate(frozen, chosen_C)
            except torch.OutOfMemoryError as error:
                reason = str(error)
            self.micro_batches.halve(reason)

    def _accumulate(self, frozen: FrozenBatch, chosen_C: Ints) -> tuple[Columns, Tensor]:
        """Gradients of this rank's share of a step, with its columns and its part of the loss."""
        self.optimizer.clear()  # of an attempt that memory did not suffice for
        layout = self._layout([frozen.samples[index] for index in chosen_C])
        passes = Passes(frozen, chosen_C, layout, self.max_tokens, self.policy)
        columns, total = Columns(layout), torch.zeros(1, device=self.policy.device)
        micro_batches = self.micro_batches(passes.samples, passes.atoms)
        for _, each in made_ahead(micro_batches, passes.make, threaded=self.micro_batches.ahead):
            total += self._backward(frozen, each, columns, len(chosen_C))
        return columns, total

    def _backward(
        self, frozen: FrozenBatch, each: Pass, columns: Columns, num_turns: int
    ) -> Tensor:
        """A pass's gradients, and its columns; returns its share of the loss of `num_turns`."""
        aims = frozen.aims_at(each.rows_N)
        scores = self.policy(each.inputs, entropy=frozen.entropy, aims=aims)
        tokens = frozen.tokens(
            each.rows_N,
            scores,
            normalizers_N=each.normalizers_N,
            turns_N=each.inputs.samples_N,
            sequences_N=each.sequences_N,
        )
        entropies_N = scores.entropies_N
        states_SD = None if self.critic is None else self.critic.states(scores).detach()
        del scores, aims  # and their hidden states
        cap = frozen.algorithm.config.importance_cap
        loss = regularized(frozen.algorithm.loss(tokens), tokens, frozen.coefficients, cap)
        weight = float(each.counts)
        value = weight * loss.value
        value.backward()
        value = value.detach()
        if self.critic is not None and states_SD is not None:  # the policy's graph is gone by now
            value += self.critic.backward(
                frozen, each.chosen, states_SD, weight=weight, num_turns=num_turns
            )
        figures = {LOGPROBS: tokens.logprobs_N, RATIOS: loss.ratios_N, ENTROPIES: entropies_N}
        figures |= {**loss.means, **loss.turn_means}
        columns.put(each.places_N, figures, each.counts)
        columns.of_turns |= loss.turn_means.keys()
        return value

    def _finish(
        self,
        started: float,
        frozen: FrozenBatch,
        reports: Sequence[StepReport],
        metrics: Metrics,
        advantages_S: Floats,
    ) -> Update:
        """The update that the steps have made; counts those without a good step."""
        refusals = [report.refusal for report in reports if report.refusal is not None]
        if reports:
            self.bad_updates = self.bad_updates + 1 if len(refusals) == len(reports) else 0
        if self.bad_updates == self.config.max_bad_updates:
            raise FloatingPointError(
                f"no optimizer step could be made in {self.bad_updates} updates in a row (the last "
                f"time {refusals[-1]}); lower learner.learning_rate or learner.grad_clip; the last "
                "checkpoint holds the last good weights"
            )
        self.version += 1
        if self.reference is not None:
            self.reference.after_update(self._made)
        if self.average is not None and self.config.ema is not None:
            self.average.follow(self.config.ema)
        seconds = time.perf_counter() - started
        trained = [frozen.samples[index] for report in reports for index in report.chosen_C]
        speed = {
            "learn/tokens_per_second": sum(each.length for each in trained) / seconds,
            "learn/out_of_memory": float(self.micro_batches.take_halvings()),
        }
        return Update(
            version=self.version,
            metrics={**metrics, **step_metrics(reports), **speed},
            advantages=advantages_S.tolist(),
            refusals=refusals,
        )

    def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        """Of the samples' tokens, in nats, under the policy as it is."""
        return [logprobs_T.tolist() for logprobs_T in self.scorer.logprobs(samples)]

    def logprobs_under(self, adapter: Adapter, samples: Sequence[TokenSample]) -> list[list[float]]:
        """The same with another adapter in the policy's place."""
        other = TrainedCopy(self.policy.trained)
        other.load(adapter)
        with other.in_place():
            return self.logprobs(samples)

    def _shuffle(self) -> np.random.Generator:
        """The chance of the next update."""
        return np.random.default_rng(derive_seed(self.seed, "shuffle", self.version))

    def _layout(self, samples: Sequence[TokenSample]) -> Layout:
        return Layout([sample.num_scored for sample in samples], self.policy.device)

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rate by `factor` from now on, beside its schedule.

        Factors multiply each other. They are part of the optimizer's state and so of a checkpoint.
        """
        self.optimizer.scale *= factor

    def snapshot(self) -> Snapshot:
        """All that makes the version, on the processor, whatever is trained afterwards.

        Every random choice derives from the seed and the version, so there is no random state to
        keep.
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

        Raises `FileExistsError` rather than write over anything.
        """
        snapshot = self.snapshot()
        snapshot.write(folder)
        return snapshot.adapter

    def load(self, folder: Path) -> None:
        """Become what `save` wrote to `folder`."""
        state = self._take(folder)
        self.version = state["version"]
        self.bad_updates = state["bad_updates"]
        with fitting(folder):
            self.optimizer.load_state_dict(state["optimizer"])

    def restore(self, folder: Path) -> None:
        """Take back weights, AdamW's moments and the algorithm's state that `save` wrote.

        What counts the run goes on: `version`, so that the next one has a new number, the place in
        the schedules, what `scale_rate` made of the rate, and bad updates in a row.
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
