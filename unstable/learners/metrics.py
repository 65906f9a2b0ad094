"""Metrics of an update; a mean is a sum over a count, never a mean of means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unstable.learners.batch import Examples, FlatBatch, Floats, Ints, role_suffix
from unstable.learners.columns import Columns, Layout
from unstable.learners.losses import kl_estimates, log_ratios
from unstable.learners.preparation import PreparedBatch
from unstable.types import Batch

Metrics = dict[str, float | None]

LOGPROBS, RATIOS, ENTROPIES = "logprobs", "ratios", "entropies"
"""Columns of a step that are not metrics; metrics have names that start with learn/."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step, token by token so that means are over tokens, never over means."""

    chosen_C: Ints  # batch indices of the samples in the columns, in order
    counts_C: Floats  # number of turns that each counts as
    loss: float
    grad_norm: float  # before clipping
    refusal: str | None  # reason for skipping the step; None: it was made
    learning_rate: float
    columns: Columns

    @property
    def means(self) -> list[str]:
        """Names of the columns whose mean is a metric."""
        return [name for name in self.columns if name.startswith("learn/")]


def batch_metrics(batch: FlatBatch, shaped_S: Floats, advantages_S: Floats) -> Metrics:
    """Compute rewards, advantages, lengths, truncations and staleness; means over samples.

    Each metric of all samples is also reported per role, under the name with /ENV/SEAT.
    """
    tokens = [sample.tokens for sample in batch.samples]
    metrics = {
        "learn/tokens_trained": sum(each.num_scored for each in tokens),
        "learn/prompt_cut_samples": sum(each.prompt_cut > 0 for each in tokens),
        "learn/prompt_cut_tokens": sum(each.prompt_cut for each in tokens),
        **_staleness(batch.batch),
        **_group_counts(batch),
    }
    everywhere = np.arange(len(batch.samples))
    for suffix, indices in [("", everywhere), *_roles(batch)]:
        metrics |= {
            f"{name}{suffix}": value
            for name, value in _sample_metrics(batch, shaped_S, advantages_S, indices).items()
        }
    return _floats(metrics)


def _staleness(batch: Batch) -> dict[str, float]:
    """Compute the staleness of samples whose versions belong to this run."""
    found = [age for sample in batch.samples if (age := batch.staleness(sample)) is not None]
    if not found:
        return {}
    return {"learn/staleness_mean": float(np.mean(found)), "learn/staleness_max": max(found)}


def _roles(batch: FlatBatch) -> list[tuple[str, Ints]]:
    """The end of a metric's name and the indices of the samples, role by role."""
    return [(role_suffix(role), indices) for role, indices in batch.by_role().items()]


def _sample_metrics(
    batch: FlatBatch, shaped_S: Floats, advantages_S: Floats, indices: Ints
) -> dict[str, Any]:
    rewards_P, shaped_P = batch.rewards_S[indices], shaped_S[indices]
    advantages_P = advantages_S[indices]
    tokens = [batch.samples[index].tokens for index in indices]
    completions_P = np.array([each.num_scored for each in tokens])
    lengths_P = np.array([each.length for each in tokens])
    cut_P = np.array([each.finish_reason == "length" for each in tokens])
    ended_P = completions_P[~cut_P] if not cut_P.all() else np.array([math.nan])
    return {
        "learn/samples": len(tokens),
        "learn/reward_mean": rewards_P.mean(),
        "learn/reward_std": rewards_P.std(),
        "learn/reward_shaped_mean": shaped_P.mean(),
        "learn/reward_shaped_std": shaped_P.std(),
        "learn/outcome_mean": np.mean([batch.owners_S[index].outcome for index in indices]),
        "learn/advantage_mean": advantages_P.mean(),
        "learn/advantage_std": advantages_P.std(),
        "learn/sequence_length_mean": lengths_P.mean(),
        "learn/sequence_length_max": lengths_P.max(),
        "learn/completion_length_mean": completions_P.mean(),
        "learn/completion_length_min": completions_P.min(),
        "learn/completion_length_max": completions_P.max(),
        "learn/ended_length_mean": ended_P.mean(),
        "learn/truncated": cut_P.sum(),
        "learn/truncated_share": cut_P.mean(),
    }


def _group_counts(batch: FlatBatch) -> dict[str, float]:
    """Groups, and those from which nothing can be learned by comparing their trajectories."""
    groups = batch.batch.groups
    alone = sum(len(group.trajectories) == 1 for group in groups)
    return {
        "learn/groups": len(groups),
        "learn/lone_groups": alone,
        "learn/tied_groups": sum(len(group.trajectories) > 1 and group.tied for group in groups),
    }


def step_metrics(reports: Sequence[StepReport]) -> Metrics:
    """Compute the metrics of an update's optimizer steps; without steps, only their count."""
    norms = [report.grad_norm for report in reports if report.refusal is None]
    counts = {
        "learn/optimizer_steps": len(norms),
        "learn/skipped_steps": len(reports) - len(norms),
    }
    if not reports:
        return _floats(counts)
    means = [ENTROPIES, *reports[0].means]
    return _floats(
        {
            **counts,
            "learn/loss": np.mean([report.loss for report in reports]),
            "learn/grad_norm": np.mean(norms) if norms else math.nan,
            "learn/learning_rate": reports[-1].learning_rate,
            "learn/ratio_max": max(float(report.columns[RATIOS].max()) for report in reports),
            **{_metric(name): _mean(reports, name) for name in means},
        }
    )


def _mean(reports: Sequence[StepReport], name: str) -> float:
    return float(np.average(_joined(reports, name).numpy(), weights=_counts(reports, name)))


def _counts(reports: Sequence[StepReport], name: str) -> Floats:
    """Return the number of turns that each figure of a column counts as."""
    return np.concatenate(
        [
            each.counts_C
            if name in each.columns.of_turns
            else np.repeat(each.counts_C, each.columns.layout.sizes)
            for each in reports
        ]
    )


def old_kl(batch: PreparedBatch, report: StepReport) -> float:
    """k3 of a turn, a mean over the step's turns, of KL(first policy || the step's).

    The first is the one that the update began with, or where that was not scored the old one.
    """
    own_N, old_N = batch.first_logprobs_N, batch.old_logprobs_N
    first_N = old_N if own_N is None else own_N
    assert first_N is not None
    first_C = first_N[batch.layout.rows(report.chosen_C)]
    kl_N = kl_estimates(report.columns[LOGPROBS], first_C).cpu().numpy()
    return float(kl_N @ _counts([report], LOGPROBS) / report.counts_C.sum())


def is_far(batch: PreparedBatch, report: StepReport, limit: float | None) -> bool:
    """Return whether an update ends with this step; all ranks have identical figures."""
    if limit is None or batch.old_logprobs_N is None:
        return False
    return old_kl(batch, report) > limit


def old_metrics(batch: PreparedBatch, reports: Sequence[StepReport], steps: int) -> Metrics:
    """Compute the epochs made, of `steps` each, and the KL after the last step."""
    epochs = {"learn/epochs_made": len(reports) / min(steps, max(1, len(batch.atoms)))}
    if not reports or batch.old_logprobs_N is None:
        return _floats(epochs)
    return _floats({**epochs, "learn/kl_old": old_kl(batch, reports[-1])})


def role_metrics(examples: Examples, reports: Sequence[StepReport]) -> Metrics:
    """Compute the mismatch between policy and behavior policy, and the steps' means for each role.

    The mismatch is measured in the first step, whose weights are still the batch's version: it
    shows how engine and learner differ (and staleness), not what the update changed. Examples that
    were not sampled have none.
    """
    if not reports:
        return {}
    chosen_P = np.concatenate([report.chosen_C for report in reports])
    sizes_S = np.array([sample.num_scored for sample in examples.samples])
    roles = sorted(set(examples.roles_S))
    numbers = {role: number for number, role in enumerate(roles)}
    roles_S = np.array([numbers[role] for role in examples.roles_S])
    roles_N = np.repeat(roles_S[chosen_P], sizes_S[chosen_P])
    suffixes = list(map(role_suffix, roles))
    metrics = {
        full_name: mean
        for name in (ENTROPIES, *reports[0].means)
        for full_name, mean in _means_by(
            _metric(name),
            _joined(reports, name),
            roles_S[chosen_P] if name in reports[0].columns.of_turns else roles_N,
            suffixes,
            _counts(reports, name),
        ).items()
    }
    if examples.behavior is None:
        return _floats(metrics)
    rows_N = Layout(sizes_S, torch.device("cpu")).rows(chosen_P)
    behavior_N = torch.cat([*examples.behavior])[rows_N]
    weights_N = log_ratios(_joined(reports, LOGPROBS), behavior_N).exp()
    first_N = _joined(reports[:1], LOGPROBS)
    sampled_N = behavior_N[: len(first_N)]
    mismatch_N, kl_N = (first_N - sampled_N).abs(), kl_estimates(first_N, sampled_N)
    return _floats(
        {
            "learn/importance_weight_mean": weights_N.mean(),
            "learn/importance_weight_min": weights_N.min(),
            "learn/importance_weight_max": weights_N.max(),
            "learn/mismatch_kl": kl_N.mean(),
            "learn/mismatch_abs_mean": mismatch_N.mean(),
            "learn/mismatch_abs_max": mismatch_N.max(),
            **_means_by("learn/mismatch_abs_mean", mismatch_N, roles_N[: len(first_N)], suffixes),
            **metrics,
        }
    )


def _means_by(
    name: str,
    values_N: torch.Tensor,
    keys_N: Ints,
    suffixes: Sequence[str],
    counts_N: Floats | None = None,
) -> dict[str, float]:
    """Means of the values with each key that there is, under the name with the key's suffix."""
    values = values_N.numpy() if counts_N is None else values_N.numpy() * counts_N
    counts = np.bincount(keys_N, counts_N, minlength=len(suffixes))
    sums = np.bincount(keys_N, weights=values, minlength=len(suffixes))
    return {name + suffixes[key]: sums[key] / counts[key] for key in np.flatnonzero(counts)}


def _metric(column: str) -> str:
    return "learn/entropy" if column == ENTROPIES else column


def _joined(reports: Sequence[StepReport], column: str) -> torch.Tensor:
    """A column of all steps, on the CPU."""
    return torch.cat([report.columns.figures(column) for report in reports])


def _floats(values: dict[str, Any]) -> Metrics:
    """Convert to floats; None for NaN and infinity, which JSON does not have."""
    plain = {name: float(value) for name, value in values.items()}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}
