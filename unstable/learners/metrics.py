"""What the learner reports of an update; a mean is a sum over a count, never a mean of means."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from unstable.learners.advantages import Floats, by_trajectory
from unstable.learners.algorithm import Prepared, StepReport
from unstable.learners.losses import kl_estimates, log_ratios
from unstable.types import Batch

Metrics = dict[str, float | None]


def batch_metrics(batch: Batch, prepared: Prepared) -> Metrics:
    """What was trained on: rewards, advantages, lengths, cuts, staleness; means over samples."""
    samples, advantages_S = batch.samples, prepared.advantages_S
    rewards_S = np.array([sample.reward for sample in samples])
    completion_lengths = [len(sample.token_ids) for sample in samples]
    lengths = [len(sample.prompt_ids) + len(sample.token_ids) for sample in samples]
    staleness = [batch.staleness(sample) for sample in samples]
    truncated = sum(sample.finish_reason == "length" for sample in samples)
    return _floats(
        {
            "learn/samples": len(samples),
            "learn/tokens_trained": sum(completion_lengths),
            "learn/reward_mean": rewards_S.mean(),
            "learn/reward_shaped_mean": prepared.rewards_S.mean(),
            "learn/outcome_mean": np.mean([sample.outcome for sample in samples]),
            "learn/advantage_mean": advantages_S.mean(),
            "learn/advantage_std": advantages_S.std(),
            "learn/sequence_length_mean": np.mean(lengths),
            "learn/sequence_length_max": max(lengths),
            "learn/completion_length_mean": np.mean(completion_lengths),
            "learn/truncated": truncated,
            "learn/truncated_share": truncated / len(samples),
            "learn/prompt_cut_samples": sum(sample.prompt_cut > 0 for sample in samples),
            "learn/prompt_cut_tokens": sum(sample.prompt_cut for sample in samples),
            "learn/staleness_mean": np.mean(staleness),
            "learn/staleness_max": max(staleness),
            **_group_counts(batch, rewards_S),
        }
    )


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
    """What the optimizer steps of one update did.

    The mismatch is that of the first step, whose weights are still those of the batch's version:
    it shows how engine and learner differ (and staleness), not what the update changed.
    """
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
        }
    )


def _floats(values: dict[str, float | torch.Tensor | np.floating]) -> Metrics:
    """Plain floats; None for what is not finite, since JSON has no word for it."""
    plain = {name: float(value) for name, value in values.items()}
    return {name: value if math.isfinite(value) else None for name, value in plain.items()}
