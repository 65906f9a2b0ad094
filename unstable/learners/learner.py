"""The learner: batches in, versions of the policy out; saves and restores all that it is.

`Learner.update` is an update from its batch to its metrics, `Learner._step` an optimizer step from
its samples to `backward`. What differs between algorithms is asked of `algorithm.Algorithm`.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import LearnerConfig, ModelConfig
from unstable.learners.algorithm import imitation
from unstable.learners.algorithms import algorithm_class
from unstable.learners.average import Average
from unstable.learners.batch import FlatBatch, Floats, Ints
from unstable.learners.checkpoint import read_average, read_checkpoint, write_checkpoint
from unstable.learners.columns import Columns, Layout
from unstable.learners.critic import Critic, prompts_of
from unstable.learners.frozen import FrozenBatch, top_advantage_units, units_of
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
from unstable.learners.micro_batches import MicroBatches, token_normalizers
from unstable.learners.model.load import load_policy
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.second_lora import SecondLoRA
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.ranks import ALONE, Ranks
from unstable.learners.reference import Reference
from unstable.learners.regularization import (
    Coefficients,
    bounded,
    coefficient_metrics,
    coefficients_at,
    opponents_kl,
    regularized,
    turn_kl,
)
from unstable.learners.scoring import Scorer
from unstable.models.adapters import export_adapter, load_weights
from unstable.types import Adapter, Batch, PlayerId, TokenSample, Update
from unstable.types.seeds import derive_seed


class Learner:
    """The owner of the trained weights, on the GPU if there is one.

    `adapter` is the start, none a fresh LoRA drawn from `seed`; `updates` is how many the run will
    make, for the schedules; `max_tokens` is the longest completion, for the constant loss norm.
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
        self.updates = updates
        self.max_tokens = max_tokens
        self.version = 0
        self.bad_updates = 0  # in a row
        self.algorithm = algorithm_class(learner.algorithm)(learner.algorithm)
        self.policy = load_policy(model, learner, seed, adapter, ranks)
        self.steps_per_update = learner.epochs * learner.steps_per_batch
        self.optimizer = PolicyOptimizer(
            self.policy.parameters(), learner, updates * self.steps_per_update
        )
        self.micro_batches = MicroBatches(
            learner.micro_batch_size,
            learner.micro_batch_tokens,
            ranks,
            together=learner.parallel == "fsdp" and ranks.count > 1,
        )
        self.scorer = Scorer(self.policy, self.micro_batches)
        algorithm = learner.algorithm
        self.reference = (
            Reference(self.policy, algorithm, self.scorer) if algorithm.uses_reference else None
        )
        self.average = None if learner.ema is None else Average(self.policy, learner.ema)
        critic = getattr(algorithm, "critic", None)
        self.critic = None if critic is None else Critic(critic, self.policy, self.optimizer)

    def update(self, batch: Batch) -> Update:
        """Train on the batch, which makes the next version.

        Raises `FloatingPointError` when, `max_bad_updates` times in a row, each step was refused
        for what is not finite. A version that such an update makes is the one before it again.
        """
        assert batch.version == self.version, f"batch {batch.version}, learner {self.version}"
        started = time.perf_counter()
        flat = FlatBatch(batch)
        rewards_S, advantages_S, frozen = self._freeze(flat)
        reports: list[StepReport] = []
        for chosen_C in self._steps(frozen):
            reports.append(self._step(frozen, chosen_C))
            if is_far(frozen, reports[-1], self.config.max_kl):
                break
        metrics = {
            **batch_metrics(flat, rewards_S, advantages_S),
            **role_metrics(flat, reports),
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
            layout=layout,
            loss=imitation,
            aggregation="token",
            trajectories_S=everything,
            units=[everything],
            advantages_N=layout.repeated(ones_S),
        )
        report = self._step(frozen, self._shuffle().permutation(len(samples)))
        metrics: Metrics = {"learn/tokens_trained": float(layout.length)}
        return self._finish(started, frozen, [report], metrics, ones_S)

    @property
    def coefficients(self) -> Coefficients:
        """What KL and entropy count in the next update."""
        return coefficients_at(self.config.algorithm, self.version + 1, self.updates)

    def _freeze(self, flat: FlatBatch) -> tuple[Floats, Floats, FrozenBatch]:
        """Shaped rewards [S], advantages [S], and all that optimizer steps keep frozen."""
        algorithm, config, samples = self.algorithm, self.config.algorithm, flat.token_samples
        layout, estimate, reading = self._layout(samples), None, None
        old, uses_old = self._old_logprobs(flat)
        per_turn = self.critic is not None
        rewards_S = bounded(flat.turn_rewards_S if per_turn else flat.rewards_S, config.reward_clip)
        if config.kl_reward > 0:
            assert old is not None and self.reference is not None
            reading = self.reference.read(samples)
            kl_S = turn_kl(old, reading.logprobs)
            kl_S = opponents_kl(flat, kl_S, per_turn=per_turn) if config.kl_opponents else kl_S
            rewards_S = rewards_S - self.coefficients.kl_reward * kl_S
        if self.critic is None:
            advantages_S = algorithm.advantages(flat, rewards_S)
        else:
            estimate = self.critic.estimate(flat, rewards_S, self._values(samples))
            advantages_S = estimate.advantages_S
        trained_S = algorithm.trained(flat, advantages_S)
        units = units_of(flat.trajectories_S, trained_S, algorithm.whole_in_step)
        if config.top_advantage_fraction < 1:
            units = top_advantage_units(units, advantages_S, config.top_advantage_fraction)
        if self.reference is not None and reading is None:
            reading = self.reference.read(samples, chain.from_iterable(units))
        weights_S = algorithm.weights(flat)
        frozen = FrozenBatch(
            samples=samples,
            layout=layout,
            loss=regularized(algorithm.loss, config, self.coefficients),
            aggregation=algorithm.aggregation,
            trajectories_S=flat.trajectories_S,
            units=units,
            whole_in_pass=algorithm.whole_in_pass,
            entropy=config.entropy > 0,
            advantages_N=layout.repeated(advantages_S),
            weights_N=None if (weights_S == 1).all() else layout.repeated(weights_S),
            behaviour_logprobs_N=layout.joined(flat.behaviour_logprobs),
            old_logprobs_N=layout.joined(old) if uses_old and old is not None else None,
            **({} if reading is None else reading.columns(layout)),
            values_S=None if estimate is None else self._floats(estimate.values_S),
            targets_S=None if estimate is None else self._floats(estimate.targets_S),
        )
        return rewards_S, advantages_S, frozen

    def _old_logprobs(self, flat: FlatBatch) -> tuple[list[Tensor] | None, bool]:
        """Those that a ratio or a KL in the reward refers to, and whether optimizer steps do.

        A single step has the policy's own, unless the old policy is the engine's.
        """
        algorithm, config = self.algorithm, self.config.algorithm
        if algorithm.uses_old_logprobs and config.old_logprobs == "engine":
            return flat.behaviour_logprobs, True
        asks = algorithm.uses_old_logprobs or self.config.max_kl is not None
        uses_old = asks and self.steps_per_update > 1
        if not uses_old and not config.kl_reward:
            return None, False
        return self.scorer.logprobs(flat.token_samples), uses_old

    def _steps(self, frozen: FrozenBatch) -> Iterator[Ints]:
        """Places of the samples of each optimizer step, epoch by epoch."""
        shuffle = self._shuffle()
        num_steps = min(self.config.steps_per_batch, len(frozen.units))
        for _ in range(self.config.epochs if frozen.units else 0):
            order = shuffle.permutation(len(frozen.units))
            for part in np.array_split(order, num_steps):
                yield np.concatenate([frozen.units[i] for i in part])

    def _step(self, frozen: FrozenBatch, chosen_C: Ints) -> StepReport:
        """One optimizer step on the chosen samples; every token has its sample's advantage."""
        sizes_C = np.array([frozen.samples[place].num_scored for place in chosen_C])
        _, sequences_C = np.unique(frozen.trajectories_S[chosen_C], return_inverse=True)
        normalizers_C = token_normalizers(sizes_C, sequences_C, frozen.aggregation, self.max_tokens)
        columns, total = self.micro_batches.fitting(
            lambda: self._accumulate(frozen, chosen_C, sequences_C, normalizers_C)
        )
        self.micro_batches.ranks.sum_([total, *self.optimizer.gradients, *columns.values()])
        learning_rate = self.optimizer.learning_rate
        stepped = self.optimizer.step(float(total))
        return StepReport(chosen_C, float(total), *stepped, learning_rate, columns)

    def _accumulate(
        self, frozen: FrozenBatch, chosen_C: Ints, sequences_C: Ints, normalizers_C: Floats
    ) -> tuple[Columns, Tensor]:
        """Gradients of this rank's share of a step, with its columns and its part of the loss."""
        self.optimizer.clear()  # of an attempt that memory did not suffice for
        samples = [frozen.samples[place] for place in chosen_C]
        device = self.policy.device
        columns, total = Columns(self._layout(samples)), torch.zeros(1, device=device)
        units = sequences_C.tolist() if frozen.whole_in_pass else None
        for places, counts in self.micro_batches(samples, units):
            rows = frozen.layout.rows(chosen_C[places])
            pack = pack_samples([samples[place] for place in places])
            scores = self.policy(pack, **frozen.forward_options(rows))
            turns_N = pack.samples_N.to(device)
            tokens = frozen.tokens(
                rows,
                scores,
                normalizers_N=self._floats(normalizers_C[places])[turns_N],
                turns_N=turns_N,
                sequences_N=torch.from_numpy(sequences_C[places]).to(device)[turns_N],
            )
            entropies_N, states_SD = scores.entropies_N, scores.states_SD.detach()
            del scores  # and its hidden states
            loss = frozen.loss(tokens)
            value = float(counts) * loss.value
            value.backward()
            value = value.detach()
            if self.critic is not None:
                value += self._critic_backward(frozen, chosen_C, places, states_SD, counts)
            total += value
            figures = {
                LOGPROBS: tokens.logprobs_N,
                RATIOS: loss.ratios_N,
                ENTROPIES: entropies_N,
                **loss.means,
            }
            columns.put(places, figures, counts)
        return columns, total

    def _critic_backward(
        self,
        frozen: FrozenBatch,
        chosen_C: Ints,
        places: Sequence[int],
        states_SD: Tensor,
        counts: bool,
    ) -> Tensor:
        """The critic's part of a micro-batch, when the graph of the policy's loss is gone."""
        assert self.critic is not None
        assert frozen.values_S is not None and frozen.targets_S is not None
        chosen = chosen_C[places]
        return self.critic.backward(
            [frozen.samples[place] for place in chosen],
            states_SD,
            frozen.values_S[chosen],
            frozen.targets_S[chosen],
            weight=float(counts),
            num_turns=len(chosen_C),
        )

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
        for follower in (self.reference, self.average):
            if follower is not None:
                follower.after_update(self.version)
        seconds = time.perf_counter() - started
        trained = [frozen.samples[place] for report in reports for place in report.chosen_C]
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
        with SecondLoRA(self.policy).in_place():
            load_weights(self.policy.model, adapter)
            return self.logprobs(samples)

    def _values(self, samples: Sequence[TokenSample]) -> Floats:
        """What the critic says of the samples' prompts [S]."""
        assert self.critic is not None
        with self.critic.in_place():
            values = self.scorer.values(prompts_of(samples), self.critic.values)
        return torch.cat(values).double().numpy()

    def _shuffle(self) -> np.random.Generator:
        """The chance of the next update."""
        return np.random.default_rng(derive_seed(self.seed, "shuffle", self.version))

    def _layout(self, samples: Sequence[TokenSample]) -> Layout:
        return Layout([sample.num_scored for sample in samples], self.policy.device)

    def _floats(self, values: Floats) -> Tensor:
        return torch.from_numpy(values).float().to(self.policy.device)

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rate by `factor` from now on, beside its schedule.

        Factors multiply each other. They are part of the optimizer's state and so of a checkpoint.
        """
        self.optimizer.scale *= factor

    def save(self, folder: Path) -> Adapter:
        """Write the version to `folder`, whole or not at all, and return its adapter.

        Every random choice derives from the seed and the version, so there is no random state to
        keep. Raises `FileExistsError` rather than write over anything.
        """
        name = PlayerId.policy(self.version).name
        adapter = export_adapter(self.policy.model, name)
        average = None if self.average is None else self.average.export(f"average of {name}")
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
        write_checkpoint(folder, adapter, state, average)
        return adapter

    def load(self, folder: Path) -> None:
        """Become what `save` wrote to `folder`."""
        state = self._take(folder)
        self.version = state["version"]
        self.bad_updates = state["bad_updates"]
        self.optimizer.load_state_dict(state["optimizer"])

    def restore(self, folder: Path) -> None:
        """Take back weights, AdamW's moments and the algorithm's state that `save` wrote.

        What counts the run goes on: `version`, so that the next one has a new number, the place in
        the schedules, what `scale_rate` made of the rate, and bad updates in a row.
        """
        state = self._take(folder)
        self.optimizer.load_moments(state["optimizer"])

    def _take(self, folder: Path) -> dict[str, Any]:
        """Load all weights and the algorithm's state; returns the learner's whole state."""
        adapter, state = read_checkpoint(folder)
        load_weights(self.policy.model, adapter)
        if self.average is not None:
            self.average.load(read_average(folder))
        algorithm = state["algorithm"]
        self.algorithm.load_state_dict(algorithm)
        if self.reference is not None:
            self.reference.load_state_dict(algorithm["reference"])
        if self.critic is not None:
            self.critic.load_state_dict(algorithm["critic"])
        return state
