"""Out of memory on a GPU: micro-batches are halved, the pass is repeated, the gradient unchanged.

Only a GPU really runs out of memory (`-m gpu`); elsewhere the model's forward raises the error.
"""

import itertools
import logging

import pytest
import torch

from tests.helpers.learners import (
    make_batch,
    make_learner,
    make_sample,
    tokens_of,
    trained,
    unlike_samples,
)
from tests.helpers.tracking import lines, make_tracker, printed
from unstable.config import LearnerConfig, ModelConfig
from unstable.learners.micro_batches import BeginAgainError
from unstable.types import Update

ROOMY = 3
"""Samples that fit into the simulated memory."""
CRITIC = {"name": "ppo", "critic": {}}


def learner_of(model: ModelConfig, micro_batch_size: int = 8, **options):
    return make_learner(model, micro_batch_size=micro_batch_size, **options)


def run_out(learner, *, after_forwards=0, in_backward=False):
    """Make passes of more than `ROOMY` samples run out of memory; returns a list of failures."""
    failed: list[int] = []
    forwards = itertools.count(1)
    forward = learner.policy.forward

    def fail(*_):
        failed.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nMore.")

    def bounded(pack, **forward_options):
        size = len(pack.states_S)
        if next(forwards) <= after_forwards or size <= ROOMY:
            return forward(pack, **forward_options)
        if not (in_backward and torch.is_grad_enabled()):
            fail()
        scores = forward(pack, **forward_options)
        scores.hidden_ND.register_hook(fail)  # after some gradients are computed
        return scores

    learner.policy.forward = bounded
    return failed


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("algorithm", [{"normalize": "none"}, CRITIC], ids=["plain", "critic"])
def test_gradient_is_unchanged_by_out_of_memory(model, gradients, algorithm, in_backward, ahead):
    batch = make_batch(unlike_samples())
    whole, halved = (learner_of(model, algorithm=algorithm) for _ in range(2))
    halved.micro_batches.ahead = ahead
    whole_update = whole.update(batch)
    expected = gradients.copy()
    gradients.clear()
    failed = run_out(halved, in_backward=in_backward)
    update = halved.update(batch)
    assert len(failed) == 2 and halved.micro_batches.size == 2  # 8, 4, 2
    assert update.metrics["learn/out_of_memory"] == 2
    assert whole_update.metrics["learn/out_of_memory"] == 0
    for one, other in zip(expected, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(trained(whole), trained(halved), atol=1e-5, rtol=1e-4)
    for name in ("learn/loss", "learn/entropy", "learn/mismatch_abs_mean", "learn/ratio_max"):
        assert update.metrics[name] == pytest.approx(whole_update.metrics[name], abs=1e-5), name
    assert (
        halved.update(make_batch(unlike_samples(), version=1)).metrics["learn/out_of_memory"] == 0
    )


@pytest.mark.parametrize("ahead", [False, True])
def test_gradients_of_a_failed_attempt_are_dropped(model, gradients, ahead):
    """Memory runs out in the third micro-batch; the gradients contain the first two.

    The fourth, made ahead of time, is dropped.
    """
    batch = make_batch([*unlike_samples(12), *unlike_samples(4)])
    whole, halved = (learner_of(model, micro_batch_size=4, batch_size=16) for _ in range(2))
    halved.micro_batches.ahead = ahead
    whole.update(batch)
    failed = run_out(halved, after_forwards=2)
    halved.update(batch)
    assert failed == [1] and halved.micro_batches.size == 2
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-5)


def test_scoring_and_imitation_recover_from_out_of_memory(model):
    whole, halved = learner_of(model), learner_of(model)
    expected = whole.logprobs(tokens_of(unlike_samples()))
    failed = run_out(halved)
    for one, other in zip(expected, halved.logprobs(tokens_of(unlike_samples())), strict=True):
        assert other == pytest.approx(one, abs=1e-5)
    assert len(failed) == 2
    losses = [e.imitate(tokens_of(unlike_samples())).metrics["learn/loss"] for e in (whole, halved)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_token_and_sample_limits_are_halved_and_logged(model, caplog):
    learner = learner_of(model, micro_batch_tokens=100)
    run_out(learner)
    learner.update(make_batch(unlike_samples()))
    assert (learner.micro_batches.size, learner.micro_batches.max_tokens) == (2, 25)
    caplog.clear()
    learner = learner_of(model)
    run_out(learner)
    with caplog.at_level(logging.WARNING):
        learner.update(make_batch(unlike_samples()))
    for size, record in zip((4, 2), caplog.records, strict=True):
        assert f"micro-batches are limited to {size} samples from now on" in record.getMessage()
        assert record.getMessage().endswith("(CUDA out of memory. Tried to allocate 20.00 MiB.)")


def test_unrecoverable_out_of_memory_names_the_remedy(model, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOMY", 0)
    learner = learner_of(model)
    run_out(learner)
    remedy = "set learner.gradient_checkpointing to on, or lower sampling.max_prompt_tokens"
    with pytest.raises(torch.OutOfMemoryError, match=f"{remedy} .*20.00 MiB.\\)$"):
        learner.update(make_batch(unlike_samples()))
    learner = learner_of(model)
    learner.micro_batches.together = True
    failed = run_out(learner)
    with pytest.raises(BeginAgainError, match="lower learner.micro_batch_size"):
        learner.update(make_batch(unlike_samples()))
    assert failed == [1]


def test_restart_limits_are_halved():
    auto, sized = LearnerConfig(), LearnerConfig(micro_batch_size=6)
    both = LearnerConfig(micro_batch_size=6, micro_batch_tokens=100)
    assert auto.with_smaller_micro_batches(0) is auto
    whole = auto.micro_batch_limits(on_gpu=True)[1]
    assert whole is not None
    for halvings in (1, 2, 30):
        tokens = max(1, whole // 2**halvings)
        made = [each.with_smaller_micro_batches(halvings) for each in (auto, sized, both)]
        size = max(1, 6 // 2**halvings)
        assert [each.micro_batch_limits(on_gpu=True) for each in made] == [
            (None, tokens),
            (size, None),
            (size, max(1, 100 // 2**halvings)),
        ]


def test_out_of_memory_is_shown_to_the_user(tmp_path):
    tracker = make_tracker(tmp_path)
    metrics: dict[str, float | None] = {"learn/out_of_memory": 2.0, "learn/loss": 0.5}
    tracker.log_learner(Update(version=3, metrics=metrics, advantages=[]))
    tracker.end_update(3)
    assert "micro-batches halved 2 times" in " ".join(printed(tracker).split())

    assert lines(tmp_path / "metrics.jsonl")[0]["learn/out_of_memory"] == 2


@pytest.mark.gpu
@pytest.mark.fault("learner GPU out of memory")
def test_learner_recovers_on_a_full_gpu(model):
    """With most of the GPU's memory taken, a pass of 64 samples does not fit."""
    learner = learner_of(model, micro_batch_size=256, batch_size=256)
    long = [make_sample([1, i % 7] * 400, [4] * 8, float(i % 3), game_id=i) for i in range(256)]
    learner.update(make_batch(long))  # allocates permanent memory
    peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((held + (peak - held) / 2) / total)
    try:
        update = learner.update(make_batch(long, version=1))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    halvings = update.metrics["learn/out_of_memory"]
    assert halvings is not None and halvings >= 1
    assert learner.micro_batches.size < 256
