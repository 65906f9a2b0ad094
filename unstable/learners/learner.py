"""The learner: batches in, versions of the policy out; saves and restores all that it is.

`Learner.update` is an update from its batch to its metrics, `Learner._step` an optimizer step from
its samples to `backward`. What differs between algorithms is asked of `algorithm.Algorithm`.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstable.config import LearnerConfig, ModelConfig
from unstable.learners.algorithm import Mask, Tokens, imitation, with_kl
from unstable.learners.algorithms import algorithm_class
from unstable.learners.batch import FlatBatch, Floats, Ints
from unstable.learners.checkpoint import read_checkpoint, write_checkpoint
from unstable.learners.columns import Columns, Layout
from unstable.learners.critic import Critic, prompts_of
from unstable.learners.frozen import FrozenBatch, units_of
from unstable.learners.metrics import (
    ENTROPIES,
    LOGPROBS,
    RATIOS,
    Metrics,
    StepReport,
    batch_metrics,
    role_metrics,
    step_metrics,
)
from unstable.learners.micro_batches import MicroBatches, token_normalizers
from unstable.learners.model.load import load_policy
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.second_lora import SecondLoRA
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.ranks import ALONE, Ranks
from unstable.learners.scoring import Scorer
from unstable.models.adapters import export_adapter, load_weights
from unstable.seeds import derive_seed
from unstable.types import Adapter, Batch, PlayerId, TokenSample, Update


class Learner:
    """The owner of the trained weights, on the GPU if there is one.

    `adapter` is the start, none a fresh LoRA drawn from `seed`; `updates` is how many the run will
    make, for the schedule; `max_tokens` is the longest completion, for the constant loss norm. A KL
    refers to the policy at construction.
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
        self.max_tokens = max_tokens
        self.version = 0
        self.bad_updates = 0  # in a row
        self.algorithm = algorithm_class(learner.algorithm)(learner.algorithm)
        self.policy = load_policy(model, learner, seed, adapter, ranks)
        self.steps_per_update = learner.epochs * learner.steps_per_batch
        self.optimizer = PolicyOptimizer(
            self.policy.parameters(), learner, updates * self.steps_per_update
        )
        size, tokens = learner.micro_batch_size, learner.micro_batch_tokens
        self.micro_batches = MicroBatches(size, tokens, ranks)
        self.scorer = Scorer(self.policy, self.micro_batches)
        algorithm = learner.algorithm
        uses_kl = algorithm.kl_reward > 0 or algorithm.kl_loss > 0
        self.reference = SecondLoRA(self.policy) if uses_kl else None
        critic = getattr(algorithm, "critic", None)
        self.critic = None if critic is None else Critic(critic, self.policy, self.optimizer)

    def update(self, batch: Batch) -> Update:
        """Train on the batch, which makes the next version.

        Raises `FloatingPointError` when, `max_bad_updates` times in a row, loss or gradient was not
        finite in any step. A version that such an update makes is the one before it again.
        """
        assert batch.version == self.version, f"batch {batch.version}, learner {self.version}"
        started = time.perf_counter()
        flat = FlatBatch(batch)
        rewards_S, advantages_S, frozen = self._freeze(flat)
        num_steps = min(self.config.steps_per_batch, len(frozen.units))
        shuffle = self._shuffle()
        reports: list[StepReport] = []
        for _ in range(self.config.epochs if frozen.units else 0):
            order = shuffle.permutation(len(frozen.units))
            for part in np.array_split(order, num_steps):
                chosen_C = np.concatenate([frozen.units[i] for i in part])
                reports.append(self._step(frozen, chosen_C))
        metrics = {
            **batch_metrics(flat, rewards_S, advantages_S),
            **role_metrics(flat, reports),
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
            masked_N=layout.repeated(ones_S == 0),
        )
        report = self._step(frozen, self._shuffle().permutation(len(samples)))
        metrics: Metrics = {"learn/tokens_trained": float(layout.length)}
        return self._finish(started, frozen, [report], metrics, ones_S)

    def _freeze(self, flat: FlatBatch) -> tuple[Floats, Floats, FrozenBatch]:
        """Shaped rewards [S], advantages [S], and all that optimizer steps keep frozen."""
        algorithm, config, samples = self.algorithm, self.config.algorithm, flat.token_samples
        old = reference = estimate = None
        uses_old = algorithm.uses_old_logprobs and self.steps_per_update > 1
        rewards_S = flat.rewards_S if self.critic is None else flat.turn_rewards_S
        if config.reward_clip is not None:
            rewards_S = np.clip(rewards_S, *config.reward_clip)
        if uses_old or config.kl_reward > 0:
            old = self.scorer.logprobs(samples)
        if config.kl_reward > 0:
            assert old is not None
            reference = self._reference_logprobs(samples)
            rewards_S = rewards_S - config.kl_reward * turn_kl(old, reference)
        if self.critic is None:
            advantages_S = algorithm.advantages(flat, rewards_S)
        else:
            estimate = self.critic.estimate(flat, rewards_S, self._values(samples))
            advantages_S = estimate.advantages_S
        trained_S = algorithm.trained(flat, advantages_S)
        if self.reference is not None and reference is None:
            reference = self._reference_logprobs(samples, trained_S)
        layout = self._layout(samples)
        frozen = FrozenBatch(
            samples=samples,
            layout=layout,
            loss=algorithm.loss if reference is None else with_kl(algorithm.loss, config.kl_loss),
            aggregation=algorithm.aggregation,
            trajectories_S=flat.trajectories_S,
            units=units_of(flat.trajectories_S, trained_S, algorithm.whole_in_step),
            whole_in_pass=algorithm.whole_in_pass,
            advantages_N=layout.repeated(advantages_S),
            masked_N=layout.repeated(algorithm.masked(flat)),
            behaviour_logprobs_N=layout.joined(flat.behaviour_logprobs),
            old_logprobs_N=layout.joined(old) if uses_old and old is not None else None,
            reference_logprobs_N=None if reference is None else layout.joined(reference),
            values_S=None if estimate is None else self._floats(estimate.values_S),
            targets_S=None if estimate is None else self._floats(estimate.targets_S),
        )
        return rewards_S, advantages_S, frozen

    def _step(self, frozen: FrozenBatch, chosen_C: Ints) -> StepReport:
        """One optimizer step on the chosen samples; every token has its sample's advantage."""
        samples = [frozen.samples[place] for place in chosen_C]
        _, sequences_C = np.unique(frozen.trajectories_S[chosen_C], return_inverse=True)
        layout, device = self._layout(samples), self.policy.device
        normalizers_C = token_normalizers(
            np.array(layout.sizes), sequences_C, frozen.aggregation, self.max_tokens
        )
        columns, total = Columns(layout), torch.zeros(1, device=device)
        units = sequences_C.tolist() if frozen.whole_in_pass else None
        for places, counts in self.micro_batches(samples, units):
            rows = frozen.layout.rows(chosen_C[places])
            pack = pack_samples([samples[place] for place in places])
            logprobs_N, entropies_N, states_SD = self.policy(pack)
            own_N, states_SD = logprobs_N.detach(), states_SD.detach()
            turns_N = pack.samples_N.to(device)
            old_N = own_N if frozen.old_logprobs_N is None else frozen.old_logprobs_N[rows]
            behaviour_N, reference_N = frozen.behaviour_logprobs_N, frozen.reference_logprobs_N
            tokens = Tokens(
                # Where it is masked a token is a constant and its ratio 1, whatever the loss.
                logprobs_N=torch.where(frozen.masked_N[rows], old_N, logprobs_N),
                old_logprobs_N=old_N,
                behaviour_logprobs_N=own_N if behaviour_N is None else behaviour_N[rows],
                reference_logprobs_N=None if reference_N is None else reference_N[rows],
                advantages_N=frozen.advantages_N[rows],
                normalizers_N=self._floats(normalizers_C[places])[turns_N],
                turns_N=turns_N,
                sequences_N=torch.from_numpy(sequences_C[places]).to(device)[turns_N],
            )
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
        self.micro_batches.ranks.sum_([total, *self.optimizer.gradients, *columns.values()])
        learning_rate = self.optimizer.learning_rate
        grad_norm = self.optimizer.step(float(total))
        return StepReport(chosen_C, float(total), grad_norm, learning_rate, columns)

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
        if reports:
            is_bad = all(report.grad_norm is None for report in reports)
            self.bad_updates = self.bad_updates + 1 if is_bad else 0
        if self.bad_updates == self.config.max_bad_updates:
            raise FloatingPointError(
                f"loss or gradient not finite in {self.bad_updates} updates in a row (the last "
                f"loss: {reports[-1].loss}); lower learner.learning_rate or learner.grad_clip; the "
                "last checkpoint holds the last good weights"
            )
        self.version += 1
        seconds = time.perf_counter() - started
        trained = [frozen.samples[place] for report in reports for place in report.chosen_C]
        speed = {"learn/tokens_per_second": sum(each.length for each in trained) / seconds}
        return Update(
            version=self.version,
            metrics={**metrics, **step_metrics(reports), **speed},
            advantages=advantages_S.tolist(),
        )

    def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        """Of the samples' tokens, in nats, under the policy as it is."""
        return [logprobs_T.tolist() for logprobs_T in self.scorer.logprobs(samples)]

    def logprobs_under(self, adapter: Adapter, samples: Sequence[TokenSample]) -> list[list[float]]:
        """The same with another adapter in the policy's place."""
        with SecondLoRA(self.policy).in_place():
            load_weights(self.policy.model, adapter)
            return self.logprobs(samples)

    def _reference_logprobs(
        self, samples: Sequence[TokenSample], wanted_S: Mask | None = None
    ) -> list[Tensor]:
        """Under the policy that the run began with; zeros for what is not wanted."""
        assert self.reference is not None
        wanted = range(len(samples)) if wanted_S is None else np.flatnonzero(wanted_S).tolist()
        found = [torch.zeros(len(sample.token_ids)) for sample in samples]
        if wanted:
            with self.reference.in_place():
                scored = self.scorer.logprobs([samples[place] for place in wanted])
            for place, logprobs_T in zip(wanted, scored, strict=True):
                found[place] = logprobs_T
        return found

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
        return Layout([len(sample.token_ids) for sample in samples], self.policy.device)

    def _floats(self, values: Floats) -> Tensor:
        return torch.from_numpy(values).float().to(self.policy.device)

    def save(self, folder: Path, run_state: dict[str, Any]) -> Adapter:
        """Write the version to `folder`, whole or not at all, and return its adapter.

        Every random choice derives from the seed and the version, so there is no random state to
        keep. Raises `FileExistsError` rather than write over anything.
        """
        adapter = export_adapter(self.policy.model, PlayerId.policy(self.version).name)
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
        write_checkpoint(folder, adapter, state, run_state)
        return adapter

    def load(self, folder: Path) -> dict[str, Any]:
        """Become what `save` wrote to `folder`; returns the run state given to it."""
        adapter, state, run_state = read_checkpoint(folder)
        load_weights(self.policy.model, adapter)
        self.version = state["version"]
        self.bad_updates = state["bad_updates"]
        self.optimizer.load_state_dict(state["optimizer"])
        algorithm = state["algorithm"]
        self.algorithm.load_state_dict(algorithm)
        if self.reference is not None:
            self.reference.load_state_dict(algorithm["reference"])
        if self.critic is not None:
            self.critic.load_state_dict(algorithm["critic"])
        return run_state


def turn_kl(logprobs: Sequence[Tensor], reference: Sequence[Tensor]) -> Floats:
    """KL of each turn [S] to the reference, by the turn that was sampled.

    Schulman's k1, http://joschu.net/blog/kl-approx.html.
    """
    return np.array([float((a - b).sum()) for a, b in zip(logprobs, reference, strict=True)])
