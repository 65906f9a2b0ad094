"""From a batch to what its optimizer steps are made of and keep frozen."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.config import LearnerConfig
from unstable.learners.algorithm import Algorithm
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.columns import Layout
from unstable.learners.critic import Critic, Estimate
from unstable.learners.examples import Examples
from unstable.learners.frozen import FrozenBatch, minibatch_atoms
from unstable.learners.model.packing import sent
from unstable.learners.reference import Others, Reading
from unstable.learners.regularization import Coefficients, shaped_rewards, turn_kl
from unstable.learners.scoring import Scorer
from unstable.types import TokenSample


class Frozen(NamedTuple):
    """What has become of a batch before its first optimizer step."""

    rewards_S: Floats  # shaped
    advantages_S: Floats
    examples: Examples
    batch: FrozenBatch


class Freezing:
    """Rewards, advantages, examples and their columns: all but the algorithm stays as it is.

    It scores the batch by the policy, reference and teacher as far as the config needs it.
    """

    def __init__(
        self, config: LearnerConfig, scorer: Scorer, others: Others, critic: Critic | None
    ) -> None:
        self._config, self._scorer, self._others, self._critic = config, scorer, others, critic
        self._reference = others.reference

    def freeze(self, flat: FlatBatch, algorithm: Algorithm, coefficients: Coefficients) -> Frozen:
        """What the optimizer steps of an update are made of; the algorithm takes the batch in."""
        config, old, reading = self._config.algorithm, None, None
        if self._reference is not None and config.kl_reward > 0:
            old = self._old_logprobs(algorithm, flat.token_samples, flat.behaviour_logprobs)
            reading = self._reference.read(flat.token_samples)
        rewards_S = shaped_rewards(
            flat,
            config,
            coefficients.kl_reward,
            old,
            None if reading is None else reading.logprobs,
            per_turn=self._critic is not None,
        )
        if self._critic is None:
            estimate = Estimate(algorithm.advantages(flat, rewards_S))
        else:
            estimate = self._critic.estimate(flat, rewards_S, self._scorer)
        examples = algorithm.examples(flat, estimate.advantages_S)
        if self._config.env_weights == "spread":
            examples = examples.spread(flat)
        if examples.samples is not flat.token_samples:
            old = reading = None
        batch = self._columns(examples, algorithm, coefficients, estimate, old, reading)
        return Frozen(rewards_S, estimate.advantages_S, examples, batch)

    def _columns(
        self,
        examples: Examples,
        algorithm: Algorithm,
        coefficients: Coefficients,
        estimate: Estimate,
        old: Sequence[Tensor] | None,
        reading: Reading | None,
    ) -> FrozenBatch:
        """What optimizer steps read of the examples, as columns; scores them as far as needed."""
        samples, atoms = examples.samples, minibatch_atoms(examples, algorithm)
        if old is None and (self._steps_use_old(algorithm) or algorithm.uses_log_ratios):
            old = self._old_logprobs(algorithm, samples, examples.behaviour)
        wanted = np.concatenate([np.array([], int), *atoms])
        if self._reference is not None and reading is None:
            reading = self._reference.read(samples, wanted)
        if algorithm.uses_log_ratios and atoms:
            assert old is not None and reading is not None
            algorithm.refer(turn_kl(old, reading.logprobs)[wanted])
        layout = Layout([sample.num_scored for sample in samples], self._scorer.device)
        weights_S = examples.weights_S
        reference_N, aims = self._others.columns(samples, wanted, reading, layout)
        return FrozenBatch(
            samples=samples,
            algorithm=algorithm,
            coefficients=coefficients,
            layout=layout,
            sequences_S=examples.sequences_S,
            atoms=atoms,
            advantages_N=layout.repeated(examples.advantages_S),
            weights_N=None if (weights_S == 1).all() else layout.repeated(weights_S),
            behaviour_logprobs_N=layout.joined(examples.behaviour),
            old_logprobs_N=layout.joined(old if self._steps_use_old(algorithm) else None),
            first_logprobs_N=layout.joined(self._first_logprobs(algorithm, samples)),
            reference_logprobs_N=reference_N,
            aims=aims,
            targets_S=None if estimate.targets_S is None else self._floats(estimate.targets_S),
        )

    def _old_is_engine(self, algorithm: Algorithm) -> bool:
        return algorithm.uses_old_logprobs and self._config.algorithm.old_logprobs == "engine"

    def _steps_use_old(self, algorithm: Algorithm) -> bool:
        """Whether optimizer steps refer to the old policy.

        A single step has the policy's own logprobs, unless the old policy is the engine's.
        """
        asks = algorithm.uses_old_logprobs or self._config.max_kl is not None
        return self._old_is_engine(algorithm) or (asks and self._config.steps_per_update > 1)

    def _old_logprobs(
        self,
        algorithm: Algorithm,
        samples: Sequence[TokenSample],
        behaviour: Sequence[Tensor] | None,
    ) -> Sequence[Tensor]:
        """Those that a ratio or a KL in the reward refers to."""
        if self._old_is_engine(algorithm) and behaviour is not None:
            return behaviour
        return self._scorer.logprobs(samples)

    def _first_logprobs(
        self, algorithm: Algorithm, samples: Sequence[TokenSample]
    ) -> list[Tensor] | None:
        """The policy's own, where an update's end depends on them and the old ones are others."""
        watched = self._config.max_kl is not None and self._config.steps_per_update > 1
        asks = watched and self._old_is_engine(algorithm)
        return self._scorer.logprobs(samples) if asks else None

    def _floats(self, values: Floats) -> Tensor:
        return sent(torch.from_numpy(values).float(), self._scorer.device)
