"""What policy gradients have in common: all but the advantages and the loss."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstable.config import Aggregation, AlgorithmConfig
from unstable.learners.advantages import Floats, trajectories
from unstable.learners.algorithm import Judgement, Loss, Prepared, StepReport, Tokens
from unstable.learners.losses import kl_penalties
from unstable.learners.mini_batches import MiniBatches, TokenColumns
from unstable.learners.optimizer import PolicyOptimizer
from unstable.learners.packing import Pack, pack_samples
from unstable.learners.policy import Policy
from unstable.learners.second_lora import SecondLoRA
from unstable.types import Sample


class PolicyGradient:
    """Implements `algorithm.Algorithm`, given `advantages` and `loss`, which a subclass writes.

    `max_tokens` is the longest completion, `steps_per_update` how many optimizer steps a batch is
    used for. A KL refers to the policy at construction.
    """

    uses_old_logprobs = True  # else no pass is spent on them

    def __init__(
        self,
        config: AlgorithmConfig,
        policy: Policy,
        optimizer: PolicyOptimizer,
        *,
        mini_batches: MiniBatches,
        max_tokens: int,
        steps_per_update: int,
    ) -> None:
        self.config = config
        self.policy = policy
        self.optimizer = optimizer
        self.mini_batches = mini_batches
        self.max_tokens = max_tokens
        self.steps_per_update = steps_per_update
        uses_kl = config.kl_reward > 0 or config.kl_loss > 0
        self.reference = SecondLoRA(policy) if uses_kl else None

    def advantages(self, samples: Sequence[Sample], rewards_S: Floats) -> Floats:
        """One advantage per sample, of rewards that bounds and KL have shaped."""
        raise NotImplementedError

    def judge(self, samples: Sequence[Sample], rewards_S: Floats) -> Judgement:
        """The advantages, and what a critic says."""
        return Judgement(self.advantages(samples, rewards_S))

    def loss(self, tokens: Tokens) -> Loss:
        """The mini-batch's share of the step's loss, without the KL."""
        raise NotImplementedError

    def backward_apart(self, tokens: Tokens, weight: float) -> Tensor:
        """Backward of a loss of other parameters, such as a critic's, times `weight`; its value.

        It comes when the graph of the policy's loss is gone. By default there is no such loss.
        """
        return tokens.logprobs_N.new_zeros(())

    @property
    def aggregation(self) -> Aggregation:
        """What the loss is a mean over."""
        return "token"

    @property
    def whole_in_step(self) -> bool:
        """Whether an optimizer step holds all turns of a trajectory or none."""
        return False

    @property
    def whole_in_pass(self) -> bool:
        """Whether a mini-batch does, as the loss of a token is made out of all of them."""
        return False

    def rewards(self, samples: Sequence[Sample]) -> Floats:
        """The samples' rewards, before the KL."""
        return np.array([sample.reward for sample in samples])

    def is_masked(self, sample: Sample) -> bool:
        """Whether the sample gets no gradient, though its reward counts for the others."""
        return False

    def prepare(self, samples: Sequence[Sample]) -> Prepared:
        """Score the batch once by each frozen policy that is needed, then the advantages."""
        rewards_S = self.rewards(samples)
        old = None
        uses_old = self.uses_old_logprobs and self.steps_per_update > 1
        if uses_old or self.config.kl_reward > 0:
            old = self.logprobs(samples)
        reference = self.reference_logprobs(samples)
        if self.config.kl_reward > 0:
            assert old is not None and reference is not None
            # Schulman's k1 of the turn, http://joschu.net/blog/kl-approx.html, before any baseline.
            kl = [float((a - b).sum()) for a, b in zip(old, reference, strict=True)]
            rewards_S = rewards_S - self.config.kl_reward * np.array(kl)
        indices = np.arange(len(samples))
        keys_S = trajectories(samples) if self.whole_in_step else indices
        return Prepared(
            samples=samples,
            rewards_S=rewards_S,
            **self.judge(samples, rewards_S)._asdict(),
            units=[indices[keys_S == key] for key in np.unique(keys_S)],
            old_logprobs=old if uses_old else None,
            reference_logprobs=reference,
        )

    def step(self, prepared: Prepared, chosen: NDArray) -> StepReport:
        """One optimizer step on the chosen samples; every token has its sample's advantage."""
        samples = [prepared.samples[i] for i in chosen]
        normalizers_S = token_normalizers(samples, self.aggregation, self.max_tokens)
        columns = TokenColumns(samples, self._device)
        total = torch.zeros(1, device=self._device)
        keys = trajectories(samples).tolist() if self.whole_in_pass else None
        for mini_batch in self.mini_batches(samples, keys):
            places, counts = mini_batch
            tokens, entropies_N = self._tokens(
                prepared, chosen[places], normalizers_S[places], len(samples)
            )
            loss = self.loss(tokens)
            value, means = loss.value, dict(loss.means)
            if tokens.reference_logprobs_N is not None:
                kl_N = kl_penalties(tokens.logprobs_N, tokens.reference_logprobs_N)
                value = value + self.config.kl_loss * (kl_N / tokens.normalizers_N).sum()
                means["learn/kl_reference"] = kl_N
            value = float(counts) * value
            value.backward()
            total += value.detach() + self.backward_apart(tokens, float(counts))
            figures = {
                "logprobs_N": tokens.logprobs_N,
                "ratios_N": loss.ratios_N,
                "entropies_N": entropies_N,
            }
            columns.put(mini_batch, figures | means)
        self.mini_batches.ranks.sum_([total, *self.optimizer.gradients, *columns.values()])
        return self._stepped(samples, float(total), columns)

    def _stepped(self, samples: Sequence[Sample], loss: float, columns: TokenColumns) -> StepReport:
        """Step by the gradients of all ranks, and tell of it."""
        learning_rate = self.optimizer.learning_rate
        grad_norm = self.optimizer.step(loss)
        told = {name: column_N.cpu() for name, column_N in columns.items()}
        return StepReport(
            samples=samples,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            logprobs_N=told.pop("logprobs_N"),
            ratios_N=told.pop("ratios_N"),
            entropies_N=told.pop("entropies_N"),
            means=told,
        )

    def metrics(self) -> dict[str, float | None]:
        """None of its own."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The policy that a KL refers to."""
        return {} if self.reference is None else {"reference": self.reference.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])

    @property
    def _device(self) -> torch.device:
        return self.optimizer.parameters[0].device

    def logprobs(self, samples: Sequence[Sample]) -> list[Tensor]:
        """Of the samples' tokens under the policy as it is, by sample, on the CPU."""
        return self.scored(samples, lambda pack: self.policy(pack).logprobs_N)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[Tensor] | None:
        """The same under the policy that the run began with; None where no KL is asked for."""
        if self.reference is None:
            return None
        with self.reference.in_place():
            return self.logprobs(samples)

    @torch.no_grad()
    def scored(self, samples: Sequence[Sample], score: Callable[[Pack], Tensor]) -> list[Tensor]:
        """What `score` says of the tokens [N] of packs of the samples, by sample, on the CPU."""
        columns = TokenColumns(samples, self._device)
        for mini_batch in self.mini_batches(samples):
            pack = pack_samples([samples[i] for i in mini_batch.places]).to(self._device)
            columns.put(mini_batch, {"scores_N": score(pack)})
        self.mini_batches.ranks.sum_([columns["scores_N"]])
        return list(columns["scores_N"].cpu().split(columns.lengths))

    def _tokens(
        self, prepared: Prepared, chosen: NDArray, normalizers_S: Floats, num_turns: int
    ) -> tuple[Tokens, Tensor]:
        """The chosen samples as one mini-batch put through the policy, and its entropies."""
        device = self._device
        samples = [prepared.samples[i] for i in chosen]
        pack = pack_samples(samples).to(device)
        logprobs_N, entropies_N, states_SD = self.policy(pack)

        def by_token(values_S: NDArray) -> Tensor:
            values = torch.tensor(values_S, dtype=torch.float32, device=device)
            return values[pack.samples_N]

        def joined(logprobs: list[Tensor]) -> Tensor:
            return torch.cat([logprobs[i] for i in chosen]).to(device)

        def by_turn(values_S: Floats | None) -> Tensor | None:
            return None if values_S is None else torch.from_numpy(values_S[chosen]).to(logprobs_N)

        old, reference = prepared.old_logprobs, prepared.reference_logprobs
        old_N = logprobs_N.detach() if old is None else joined(old)
        masked_N = by_token(np.array([self.is_masked(sample) for sample in samples])) > 0
        sequences_S = torch.from_numpy(trajectories(samples)).to(device)
        tokens = Tokens(
            # Where it is masked a token is a constant and its ratio 1, whatever the loss.
            logprobs_N=torch.where(masked_N, old_N, logprobs_N),
            old_logprobs_N=old_N,
            behaviour_logprobs_N=pack.behaviour_N,
            reference_logprobs_N=None if reference is None else joined(reference),
            advantages_N=by_token(prepared.advantages_S[chosen]),
            normalizers_N=by_token(normalizers_S),
            turns_N=pack.samples_N,
            sequences_N=sequences_S[pack.samples_N],
            samples=samples,
            states_SD=states_SD.detach(),
            values_S=by_turn(prepared.values_S),
            targets_S=by_turn(prepared.targets_S),
            num_turns=num_turns,
        )
        return tokens, entropies_N


def token_normalizers(
    samples: Sequence[Sample], aggregation: Aggregation, max_tokens: int
) -> Floats:
    """What the loss of each token of the samples [S] is divided by, so that the sum is the mean.

    token: the mean over all tokens. turn: the mean of the turns' means. sequence: the mean of the
    trajectories' means. constant: samples x `max_tokens`, which no length can change, as in
    Dr. GRPO, https://arxiv.org/abs/2503.20783.
    """
    lengths_S = np.array([len(sample.token_ids) for sample in samples], dtype=np.float64)
    if aggregation == "token":
        return np.full(len(samples), lengths_S.sum())
    if aggregation == "turn":
        return len(samples) * lengths_S
    if aggregation == "constant":
        return np.full(len(samples), float(len(samples) * max_tokens))
    keys_S = trajectories(samples)
    totals_T: Floats = np.bincount(keys_S, weights=lengths_S).astype(np.float64)
    return len(totals_T) * totals_T[keys_S]
