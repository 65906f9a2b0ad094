"""Preparation of a batch: from its turns to the columns and passes that optimizer steps read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.config import ClippedConfig, LearnerConfig
from unstable.learners.action_critic import ActionCritic
from unstable.learners.advantages import spread_weights
from unstable.learners.algorithm import Algorithm, Tokens
from unstable.learners.batch import Examples, FlatBatch, Floats, Ints
from unstable.learners.columns import Layout
from unstable.learners.critic import Critic, Estimate
from unstable.learners.micro_batches import MicroBatch, token_normalizers
from unstable.learners.model.logprobs import DivergenceTarget
from unstable.learners.model.packing import sent
from unstable.learners.model.policy import Inputs, Policy, Scores
from unstable.learners.model.token_table import TokenTable
from unstable.learners.reference import OtherPolicies, PolicyReading
from unstable.learners.regularization import Coefficients, shaped_rewards, turn_kl
from unstable.learners.scoring import Scorer
from unstable.types import TokenSample


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """Examples [S] with N scored tokens, in order, and all that optimizer steps keep constant.

    Tensors are on the policy's device.
    """

    examples: Examples
    algorithm: Algorithm
    coefficients: Coefficients
    table: TokenTable  # of the examples
    layout: Layout  # of the columns [N]
    atoms: Sequence[Ints]  # examples that an optimizer step keeps together; empty: no step
    rewards_S: Floats  # shaped rewards of the batch's turns
    advantages_S: Floats  # of the batch's turns
    advantages_N: Tensor  # of the examples
    weights_N: Tensor | None = None  # of tokens' gradients; None: all are 1
    enumerated_N: Tensor | None = None  # see `Examples`; None: no token is
    behavior_logprobs_N: Tensor | None = None  # None: the policy's own, as each pass scores them
    old_logprobs_N: Tensor | None = None  # None: the policy's own, in a single step
    first_logprobs_N: Tensor | None = None  # before the first step; None: the old ones
    reference_logprobs_N: Tensor | None = None  # None: the config has no KL
    aims: Mapping[str, DivergenceTarget] = field(default_factory=dict)  # of exact divergences
    targets_S: Tensor | None = None  # of the critic; None: no critic

    @property
    def entropy(self) -> bool:
        """True if the loss needs entropies."""
        return self.algorithm.config.entropy > 0

    def aims_at(self, rows: Tensor) -> dict[str, DivergenceTarget]:
        """Return the aims of these rows."""
        return {name: aim.rows(rows) for name, aim in self.aims.items()}

    def tokens(self, each: "Pass", scores: Scores) -> Tokens:
        """Return the scored tokens of a pass as a loss reads them.

        For every loss a token of weight 0 is a constant and its ratio 1.
        """
        rows = each.rows_N
        own_N = scores.logprobs_N.detach()
        old_N = _rows(self.old_logprobs_N, rows, own_N)
        logprobs_N, entropies_N = scores.logprobs_N, scores.entropies_N if self.entropy else None
        divergences = scores.divergences
        if self.weights_N is not None:
            weights_N = self.weights_N[rows]
            logprobs_N = torch.where(weights_N == 0, old_N, _weighted(logprobs_N, weights_N))
            entropies_N = None if entropies_N is None else _weighted(entropies_N, weights_N)
            divergences = {
                name: _weighted(each_N, weights_N) for name, each_N in divergences.items()
            }
        reference_N = self.reference_logprobs_N
        return Tokens(
            logprobs_N=logprobs_N,
            old_logprobs_N=old_N,
            behavior_logprobs_N=_rows(self.behavior_logprobs_N, rows, own_N),
            reference_logprobs_N=None if reference_N is None else reference_N[rows],
            advantages_N=self.advantages_N[rows],
            normalizers_N=each.normalizers_N,
            turns_N=each.inputs.samples_N,
            sequences_N=each.sequences_N,
            enumerated_N=_rows(self.enumerated_N, rows, torch.zeros_like(rows, dtype=torch.bool)),
            entropies_N=entropies_N,
            divergences=divergences,
        )


def _rows(column_N: Tensor | None, rows: Tensor, own_N: Tensor) -> Tensor:
    return own_N if column_N is None else column_N[rows]


def _weighted(values_N: Tensor, weights_N: Tensor) -> Tensor:
    """Multiply the gradient of the values [N] by a weight; the values do not change."""
    return weights_N * values_N + (1 - weights_N) * values_N.detach()


class Pass(NamedTuple):
    """A micro-batch with N scored tokens; tensors are on the policy's device."""

    chosen: Ints  # indices of its examples in the batch
    counts: bool  # False: a repeat with weight 0
    inputs: Inputs
    rows_N: Tensor  # rows of its tokens in the batch's columns
    places_N: Tensor  # rows of its tokens in the step's columns
    normalizers_N: Tensor
    sequences_N: Tensor  # index of each token's trajectory, from 0


class Passes:
    """Makes the passes of an optimizer step on the chosen examples, ready on the device."""

    def __init__(
        self, batch: PreparedBatch, chosen_C: Ints, max_tokens: int, policy: Policy
    ) -> None:
        self._policy, self._batch, self._chosen_C = policy, batch, chosen_C
        self.table = batch.table.take(chosen_C)
        self.layout = Layout(self.table.scored_S, policy.device)
        sequences_C = batch.examples.sequences_S[chosen_C]
        _, self._sequences_C = np.unique(sequences_C, return_inverse=True)
        self._normalizers_C = (
            token_normalizers(
                self.table.scored_S.astype(float),
                self._sequences_C,
                batch.algorithm.aggregation,
                max_tokens,
            )
            / batch.examples.counts_S[chosen_C]
        )

    @property
    def atoms(self) -> list[int] | None:
        """The atom of each example, which a pass keeps whole; None: each example is one."""
        return self._sequences_C.tolist() if self._batch.algorithm.whole_in_pass else None

    def make(self, micro_batch: MicroBatch) -> Pass:
        """Make the pass of a micro-batch; changes nothing, so that a thread may make it ahead."""
        indices, counts = micro_batch
        device = self.layout.device
        inputs = self._policy.inputs(self.table.take(indices))
        owners_N = self._sequences_C[indices][inputs.samples_N.numpy()]
        sequences_N = torch.from_numpy(np.unique(owners_N, return_inverse=True)[1])
        normalizers_S = torch.from_numpy(self._normalizers_C[indices]).float()
        return Pass(
            chosen=self._chosen_C[indices],
            counts=counts,
            inputs=inputs.to(device),
            rows_N=self._batch.layout.rows(self._chosen_C[indices]),
            places_N=self.layout.rows(indices),
            normalizers_N=sent(normalizers_S[inputs.samples_N], device),
            sequences_N=sent(sequences_N, device),
        )


class Preparation:
    """Prepares batches: rewards, advantages, examples and their columns.

    It scores the batch under the policy, the reference and the teacher as far as the config needs
    it. Only the algorithm and an action critic change state.
    """

    def __init__(
        self,
        config: LearnerConfig,
        scorer: Scorer,
        others: OtherPolicies,
        critic: Critic | ActionCritic | None,
    ) -> None:
        self._config, self._scorer, self._others, self._critic = config, scorer, others, critic
        self._reference = others.reference

    def __call__(
        self,
        flat: FlatBatch,
        algorithm: Algorithm,
        coefficients: Coefficients,
        *,
        learns: bool = True,
    ) -> PreparedBatch:
        """Prepare a batch; updates baselines, and the action critic if it `learns`."""
        config, old, reading = self._config.algorithm, None, None
        if self._reference is not None and config.kl_reward > 0:
            old = self._old_logprobs(algorithm, flat.token_samples, flat.behavior_logprobs)
            reading = self._reference.read(flat.token_samples)
        rewards_S = shaped_rewards(
            flat,
            config,
            coefficients.kl_reward,
            old,
            None if reading is None else reading.logprobs,
            per_turn=self._critic is not None,
        )
        estimate = self._estimate(flat, algorithm, rewards_S, learns=learns)
        examples = estimate.examples or algorithm.examples(flat, estimate.advantages_S)
        if self._config.env_weights == "spread":
            spread = spread_weights(flat.rewards_S, flat.roles_S)
            weights_S = examples.weights_S * [spread.get(env, 1.0) for env, _ in examples.roles_S]
            examples = replace(examples, weights_S=weights_S)
        samples, atoms = examples.samples, minibatch_atoms(examples, algorithm)
        if samples is not flat.token_samples:
            old, reading = estimate.logprobs, None
        wanted = np.concatenate([np.array([], int), *atoms])
        old, reading = self._scored(examples, algorithm, wanted, old, reading)
        table = TokenTable.of(samples)
        layout = Layout(table.scored_S, self._scorer.device)
        weights_S, targets_S = examples.weights_S, estimate.targets_S
        if len(wanted):
            examples = _scaled_by_mean_count(examples, table.scored_S, wanted)
        reference_N, aims = self._others.columns(samples, wanted, reading, layout)
        return PreparedBatch(
            examples=examples,
            algorithm=algorithm,
            coefficients=coefficients,
            table=table,
            layout=layout,
            atoms=atoms,
            rewards_S=rewards_S,
            advantages_S=estimate.advantages_S,
            advantages_N=layout.repeated(examples.advantages_S),
            weights_N=None if (weights_S == 1).all() else layout.repeated(weights_S),
            enumerated_N=layout.repeated(examples.enumerated_S),
            behavior_logprobs_N=layout.joined(examples.behavior),
            old_logprobs_N=layout.joined(old if self._steps_use_old(algorithm) else None),
            first_logprobs_N=layout.joined(self._first_logprobs(algorithm, samples)),
            reference_logprobs_N=reference_N,
            aims=aims,
            targets_S=None
            if targets_S is None
            else sent(torch.from_numpy(targets_S).float(), self._scorer.device),
        )

    def _estimate(
        self, flat: FlatBatch, algorithm: Algorithm, rewards_S: Floats, *, learns: bool
    ) -> Estimate:
        """Return the advantages of the algorithm or its critic."""
        if self._critic is None:
            return Estimate(algorithm.advantages(flat, rewards_S))
        if isinstance(self._critic, Critic):
            return self._critic.estimate(flat, rewards_S, self._scorer)
        config, weights_S, scorer = algorithm.config, algorithm.weights(flat), self._scorer
        weighs = isinstance(config, ClippedConfig) and config.importance != "none"
        cap = config.importance_cap if weighs else None
        return self._critic.estimate(flat, rewards_S, weights_S, scorer, cap=cap, learns=learns)

    def _scored(
        self,
        examples: Examples,
        algorithm: Algorithm,
        wanted: Ints,
        old: Sequence[Tensor] | None,
        reading: PolicyReading | None,
    ) -> tuple[Sequence[Tensor] | None, PolicyReading | None]:
        """Score examples under the old and the reference policy, unless done or unneeded.

        Passes the log-ratios of the wanted examples to the algorithm (`refer`).
        """
        samples = examples.samples
        if old is None and (self._steps_use_old(algorithm) or algorithm.uses_log_ratios):
            old = self._old_logprobs(algorithm, samples, examples.behavior)
        if self._reference is not None and reading is None:
            reading = self._reference.read(samples, wanted)
        if algorithm.uses_log_ratios and len(wanted):
            assert old is not None and reading is not None
            algorithm.refer(turn_kl(old, reading.logprobs)[wanted])
        return old, reading

    def _old_is_engine(self, algorithm: Algorithm) -> bool:
        return algorithm.uses_old_logprobs and self._config.algorithm.old_logprobs == "engine"

    def _steps_use_old(self, algorithm: Algorithm) -> bool:
        """Return whether optimizer steps refer to the old policy.

        A single step has the policy's own logprobs, unless the old policy is the engine's.
        """
        asks = algorithm.uses_old_logprobs or self._config.max_kl is not None
        return self._old_is_engine(algorithm) or (asks and self._config.steps_per_update > 1)

    def _old_logprobs(
        self,
        algorithm: Algorithm,
        samples: Sequence[TokenSample],
        behavior: Sequence[Tensor] | None,
    ) -> Sequence[Tensor]:
        """Return the logprobs that a ratio, or a KL in the reward, refers to."""
        if self._old_is_engine(algorithm) and behavior is not None:
            return behavior
        return self._scorer.logprobs(samples)

    def _first_logprobs(
        self, algorithm: Algorithm, samples: Sequence[TokenSample]
    ) -> list[Tensor] | None:
        """Return the policy's own, if `max_kl` depends on them and the old ones are others."""
        watched = self._config.max_kl is not None and self._config.steps_per_update > 1
        asks = watched and self._old_is_engine(algorithm)
        return self._scorer.logprobs(samples) if asks else None


def minibatch_atoms(examples: Examples, algorithm: Algorithm) -> list[Ints]:
    """Return the indices of examples that optimizer steps keep together, one array for each atom.

    An atom is a single example or, if the algorithm says so, a whole sequence; of all atoms the
    `top_advantage_fraction` is kept.
    """
    indices, advantages_S = examples.chosen, examples.advantages_S
    keys = examples.sequences_S[indices] if algorithm.whole_in_step else indices
    order = np.argsort(keys, kind="stable")
    _, firsts = np.unique(keys[order], return_index=True)
    atoms = np.split(indices[order], firsts[1:]) if len(indices) else []
    share = algorithm.config.top_advantage_fraction
    if share == 1:
        return atoms
    return top_advantage_atoms(atoms, advantages_S, examples.counts_S, share)


def _scaled_by_mean_count(examples: Examples, lengths_S: Ints, wanted: Ints) -> Examples:
    """Scale the counts so that their mean over the wanted examples' tokens is 1."""
    lengths = lengths_S[wanted]
    mean = (examples.counts_S[wanted] * lengths).sum() / lengths.sum()
    return replace(examples, counts_S=examples.counts_S / mean)


def top_advantage_atoms(
    atoms: Sequence[Ints], advantages_S: Floats, counts_S: Floats, share: float
) -> list[Ints]:
    """Keep the `share` of the atoms, rounded up, with the largest mean |advantage|, in their order.

    Among equal ones the first are kept.
    """
    weights_S = counts_S + np.finfo(float).tiny  # those of an atom may all be 0
    sizes = [np.average(np.abs(advantages_S[atom]), weights=weights_S[atom]) for atom in atoms]
    kept = np.argsort(-np.array(sizes), kind="stable")[: math.ceil(share * len(atoms))]
    return [atoms[index] for index in sorted(kept)]
