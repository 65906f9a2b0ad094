"""What the learner reports of an update; a mean is a sum over a count, never a mean of means."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unstable.learners.advantages import Floats, by_trajectory, role_suffix
from unstable.learners.algorithm import Prepared, StepReport
from unstable.learners.losses import kl_estimates, log_ratios
from unstable.types import Batch, Sample

Metrics = dict[str, float | None]


def batch_metrics(batch: Batch, prepared: Prepared) -> Metrics:
    """What was trained on: rewards, advantages, lengths, cuts, staleness; means over samples.

    What is told of all samples is told of each role as well, under the name with /ENV/SEAT.
    """
    samples = batch.samples
    staleness = [batch.staleness(sample) for sample in samples]
    metrics = {
        "learn/tokens_trained": sum(len(sample.token_ids) for sample in samples),
        "learn/prompt_cut_samples": sum(sample.prompt_cut > 0 for sample in samples),
        "learn/prompt_cut_tokens": sum(sample.prompt_cut for sample in samples),
        "learn/staleness_mean": np.mean(staleness),
        "learn/staleness_max": max(staleness),
        **_sample_metrics(samples, prepared, np.arange(len(samples)), ""),
        **_group_counts(batch, np.array([sample.reward for sample in samples])),
    }
    for role, places in _roles(samples).items():
        metrics |= _sample_metrics(samples, prepared, places, role)
    return _floats(metrics)


def _roles(samples: Sequence[Sample]) -> dict[str, NDArray]:
    """Places of the samples of each env and seat, by the end of a metric's name."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, sample in enumerate(samples):
        places[role_suffix((sample.env, sample.seat))].append(place)
    return {role: np.array(found) for role, found in sorted(places.items())}


def _sample_metrics(
    samples: Sequence[Sample], prepared: Prepared, places: NDArray, role: str
) -> dict[str, Any]:
    chosen = [samples[place] for place in places]
    rewards_S = np.array([sample.reward for sample in chosen])
    shaped_S, advantages_S = prepared.rewards_S[places], prepared.advantages_S[places]
    completions_S = np.array([len(sample.token_ids) for sample in chosen])
    lengths_S = completions_S + [len(sample.prompt_ids) for sample in chosen]
    cut_S = np.array([sample.finish_reason == "length" for sample in chosen])
    ended_S = completions_S[~cut_S] if not cut_S.all() else np.array([math.nan])
    return {
        f"{name}{role}": value
        for name, value in {
            "learn/samples": len(chosen),
            "learn/reward_mean": rewards_S.mean(),
            "learn/reward_std": rewards_S.std(),
            "learn/reward_shaped_mean": shaped_S.mean(),
            "learn/reward_shaped_std": shaped_S.std(),
            "learn/outcome_mean": np.mean([sample.outcome for sample in chosen]),
            "learn/advantage_mean": advantages_S.mean(),
            "learn/advantage_std": advantages_S.std(),
            "learn/sequence_length_mean": lengths_S.mean(),
            "learn/sequence_length_max": lengths_S.max(),
            "learn/completion_length_mean": completions_S.mean(),
            "learn/completion_length_min": completions_S.min(),
            "learn/completion_length_max": completions_S.max(),
            "learn/ended_length_mean": ended_S.mean(),
            "learn/truncated": cut_S.sum(),
            "learn/truncated_share": cut_S.mean(),
        }.items()
    }


def _group_counts(batch: Batch, rewards_S: Floats) -> dict[str, float]:
    """Groups, and those from which nothing can be learned by comparing their trajectories."""
    table = by_trajectory(batch.samples, rewards_S)
    groups: dict[int, list[float]] = defaultdict(list)
    for group, reward in zip(table.groups_T, table.rewards_T.tolist(), strict=True):
        groups[group].append(reward)
    alone = sum(len(rewards) == 1 for rewards in groups.values())
    return {
        "learn/groups": len(groups),
        "learn/lone_groups": alone,
        "learn/tied_groups": sum(min(g) == max(g) for g in groups.values()) - alone,
    }


def step_metrics(reports: Sequence[StepReport], importance_cap: float) -> Metrics:
    """What the optimizer steps of one update did; of none, that there were none.

    The mismatch is that of the first step, whose weights are still those of the batch's version:
    it shows how engine and learner differ (and staleness), not what the update changed.
    """
    if not reports:
        return {"learn/optimizer_steps": 0.0, "learn/skipped_steps": 0.0}
    entropies_N = torch.cat([report.entropies_N for report in reports])
    logprobs_N = torch.cat([report.logprobs_N for report in reports])
    behaviour_N = torch.cat([report.behaviour_logprobs_N for report in reports])
    weights_N = log_ratios(logprobs_N, behaviour_N).exp()
    norms = [report.grad_norm for report in reports if report.grad_norm is not None]
    first = reports[0]
    mismatch_N = (first.logprobs_N - first.behaviour_logprobs_N).abs()
    kl_N = kl_estimates(first.logprobs_N, first.behaviour_logprobs_N)
    return _floats(
        {
            "learn/loss": np.mean([report.loss for report in reports]),
            "learn/grad_norm": np.mean(norms) if norms else math.nan,
            "learn/learning_rate": reports[-1].learning_rate,
            "learn/entropy": entropies_N.mean(),
            "learn/importance_weight_mean": weights_N.mean(),
            "learn/importance_weight_min": weights_N.min(),
            "learn/importance_weight_max": weights_N.max(),
            "learn/importance_capped": (weights_N > importance_cap).float().mean(),
            "learn/mismatch_kl": kl_N.mean(),
            "learn/mismatch_abs_mean": mismatch_N.mean(),
            "learn/mismatch_abs_max": mismatch_N.max(),
            "learn/optimizer_steps": len(norms),
            "learn/skipped_steps": len(reports) - len(norms),
            "learn/ratio_max": max(float(report.ratios_N.max()) for report in reports),
            **{
                name: torch.cat([report.means[name] for report in reports]).mean()
                for name in first.means
            },
            **_role_metrics(reports),
        }
    )


def _role_metrics(reports: Sequence[StepReport]) -> dict[str, Any]:
    """Entropy, mismatch of the first step and all means of the algorithm, for each role."""
    first = reports[0]
    columns = {
        "learn/entropy": [report.entropies_N for report in reports],
        "learn/mismatch_abs_mean": [(first.logprobs_N - first.behaviour_logprobs_N).abs()],
        **{name: [report.means[name] for report in reports] for name in first.means},
    }
    values: dict[str, list[torch.Tensor]] = defaultdict(list)
    for name, by_step in columns.items():
        for report, column_N in zip(reports, by_step, strict=False):
            by_sample = column_N.split([len(sample.token_ids) for sample in report.samples])
            for role, places in _roles(report.samples).items():
                values[name + role] += [by_sample[place] for place in places]
    return {name: torch.cat(parts).mean() for name, parts in values.items()}


def _floats(values: dict[str, float | torch.Tensor | np.floating]) -> Metrics:
    """Plain floats; None for what is not finite, since JSON has no word for it."""
    plain = {name: float(value) for name, value in values.items()}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}
