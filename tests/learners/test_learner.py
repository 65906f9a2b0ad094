import dataclasses
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load, save
from torch.overrides import TorchFunctionMode

from tests.helpers.builders import completion, game, sampled, turn
from tests.helpers.learners import (
    VOCAB,
    assert_resumes_to_the_bit,
    count_compiled,
    count_forwards,
    make_batch,
    make_learner,
    make_sample,
    mixed_batch,
    plain_logprobs,
    plain_policy,
    play_bandit,
    solve_bandit,
    tokens_of,
    trained,
)
from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import random_adapter, tiny_model
from tests.helpers.records import game_record
from unstable.config import ConfigError
from unstable.learners import columns, preparation
from unstable.learners.model import packing
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import read_adapter
from unstable.models.checkpoint import STATE_FILE
from unstable.records.games import read_game
from unstable.types import Reward, Segment


def plain(**changes):
    """Config of REINFORCE without normalized advantages."""
    return {"name": "reinforce", "normalize": "none"} | changes


def test_micro_batch_tokens_and_recomputing_keep_the_gradient(model, gradients):
    runs = []
    for changes in ({}, {"micro_batch_tokens": 12}, {"gradient_checkpointing": "on"}):
        learner = make_learner(model, **changes)
        forwards = count_forwards(learner.policy.layers[0])
        learner.update(mixed_batch(0))
        runs.append(len(forwards))
        learner.update(mixed_batch(1))
    assert runs == [1, 5, 2]  # forward runs: whole, by 12 tokens, whole and recomputed
    whole, twelves, recomputed = (torch.stack(gradients[i : i + 2]) for i in (0, 2, 4))
    torch.testing.assert_close(twelves, whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(recomputed, whole, atol=1e-6, rtol=1e-5)


def test_compiling_does_not_change_the_gradient(model, gradients, monkeypatch):
    make_learner(model).update(mixed_batch(0))
    runs = count_compiled(monkeypatch)
    make_learner(model, compile=True).update(mixed_batch(0))
    assert runs
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-5)


def test_only_sampled_segments_of_an_answer_are_trained(model, gradients, tmp_path):
    """The gradient equals the gradient of a plain forward with no loss on inserted tokens."""
    learner, peft_model = make_learner(model, algorithm=plain()), plain_policy(model)
    TrainedLora(peft_model).load(learner.save(tmp_path / "000000"))
    inserted = Segment(token_ids=[9, 8, 9], scored=False)
    segments = (completion(token_ids=[3, 4]), inserted, completion(token_ids=[5, 6, 7]))
    unscored = replace(sampled(prompt_ids=[1, 2, 3]), segments=segments)
    was_sampled = torch.tensor([True, True, False, False, False, True, True, True])
    logprobs = plain_logprobs(peft_model, unscored)[was_sampled]
    scored = logprobs.tolist()
    first, last = (
        replace(segments[0], logprobs=scored[:2]),
        replace(segments[2], logprobs=scored[2:]),
    )
    played = game(turns=1)
    played.turns = [
        turn(0, 0, "main@0", sampled=replace(unscored, segments=(first, inserted, last)))
    ]
    record = game_record(played, [], 0, None)
    tokens = read_game("a line", record).turns[0].answer.sampled
    assert tokens is not None
    made = make_sample([1], [2], reward=0.5)
    made = made._replace(sample=replace(made.sample, tokens=tokens))
    other = make_sample([1, 2, 3, 3], [4, 9, 8], reward=-1.0, game_id=1, group_id=1)
    others = plain_logprobs(peft_model, other.tokens)
    (own,) = other.tokens.completions
    own = replace(own, logprobs=others.tolist())
    other = other._replace(
        sample=replace(other.sample, tokens=replace(other.tokens, segments=(own,)))
    )
    update = learner.update(make_batch([made, other]))
    assert update.metrics["learn/tokens_trained"] == 5 + 3
    assert update.metrics["learn/mismatch_abs_max"] < 1e-5
    (-(0.5 * logprobs.sum() - 1.0 * others.sum()) / 8).backward()
    expected = [p.grad.flatten() for p in peft_model.parameters() if p.requires_grad]
    torch.testing.assert_close(gradients[0], torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_metrics_describe_the_training_batch(model):
    rewards = {"outcome": Reward(1.0, 1.0), "format": Reward(1.0, 0.5)}
    cut: dict[str, Any] = {"finish_reason": "length", "rewards": rewards}

    batch = make_batch(
        [
            make_sample([1, 2], [3], 1.0, seat=0, game_id=1, group_id=1, prompt_cut=7),
            make_sample([1, 2, 3], [4, 5], 0.0, seat=1, game_id=1, group_id=2, version=-2),
            make_sample([1], [4, 5, 6], game_id=2, group_id=3, outcome=1.0, **cut),
        ]
    )

    update = make_learner(model, batch_size=3, micro_batch_size=1).update(batch)
    metrics = update.metrics
    assert update.version == 1
    assert update.advantages == [1.0, 0.0, 1.5]  # baselines start at 0
    expected = (
        {"samples": 3, "groups": 3, "tokens_trained": 6, "optimizer_steps": 1, "skipped_steps": 0}
        | {"reward_mean": 2.5 / 3, "outcome_mean": 2 / 3, "advantage_mean": 2.5 / 3}
        | {"sequence_length_mean": 4.0, "sequence_length_max": 5, "completion_length_mean": 2.0}
        | {"truncated": 1, "truncated_share": 1 / 3, "learning_rate": 1e-2}
        | {"prompt_cut_samples": 1, "prompt_cut_tokens": 7}
        | {"staleness_mean": 2 / 3, "staleness_max": 2}
        | {"baseline/env/0": (1 - 0.95**2) * 1.25, "baseline/env/1": 0.0}
    )

    for name, value in expected.items():
        assert metrics[f"learn/{name}"] == pytest.approx(value), name
    assert all(value is None or type(value) is float for value in metrics.values())


def test_mismatch_is_zero_if_learner_agrees_with_sampler(model):
    plain = plain_policy(model)
    samples = [
        make_sample(each.prompt_ids, each.token_ids, logprobs=own, temperature=each.temperature)
        for each in tokens_of(mixed_batch(0).samples)
        for own in [plain_logprobs(plain, each).tolist()]
    ]

    # Several steps with different weights: only the first one counts for the mismatch.
    learner = make_learner(model, steps_per_batch=2, micro_batch_size=4, epochs=2)
    metrics = learner.update(make_batch(samples)).metrics
    assert metrics["learn/optimizer_steps"] == 4
    assert metrics["learn/mismatch_abs_max"] == pytest.approx(0, abs=1e-5)
    assert metrics["learn/mismatch_kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["learn/importance_weight_max"] > 1.001


def test_scoring_under_another_adapter_keeps_the_policy(model):
    adapter = random_adapter(tiny_model(vocab=VOCAB), "other", seed=3)
    samples = tokens_of(mixed_batch(0).samples)
    learner = make_learner(model)
    before, own = trained(learner), learner.logprobs(samples)
    expected = make_learner(model, adapter=adapter).logprobs(samples)
    assert expected != own
    assert learner.logprobs_under(adapter, samples) == expected
    misfit = random_adapter(tiny_model(vocab=VOCAB), "wide", seed=3, rank=8)
    refused("adapter 'wide' does not match the model", learner.logprobs_under, misfit, samples)
    assert learner.logprobs(samples) == own
    assert torch.equal(trained(learner), before)


def test_save_and_load_between_updates_change_nothing(model, tmp_path):
    changes = {"steps_per_batch": 2, "micro_batch_size": 2, "schedule": "cosine", "epochs": 2}

    def learner():
        return make_learner(model, algorithm=plain(normalize="zscore"), **changes)

    *_, adapter = assert_resumes_to_the_bit(learner, mixed_batch, tmp_path / "checkpoints")
    assert adapter.name == "main@2"
    assert read_adapter(tmp_path / "checkpoints" / "000002", "main@2") == adapter


KILLED = """
import os
from pathlib import Path
from unstable.records.files import new_folder

with new_folder(Path("000000")) as scratch:
    (scratch / "half").touch()
    os._exit(9)
"""


def test_checkpoint_is_atomic_and_never_overwritten(model, tmp_path):
    learner = make_learner(model)
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert len(list(tmp_path.iterdir())) == 1
    learner.save(tmp_path / "000000")
    assert [path.name for path in tmp_path.iterdir()] == ["000000"]
    names = sorted(path.name for path in (tmp_path / "000000").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors", "learner.pt"]

    with pytest.raises(FileExistsError, match="000000"):
        learner.save(tmp_path / "000000")


def change(file, **content):
    """Rewrite a checkpoint's file with other values; None leaves a key out."""
    old = torch.load(file) if file.suffix == ".pt" else json.loads(file.read_text())
    new = {key: value for key, value in (old | content).items() if value is not None}
    if file.suffix == ".pt":
        torch.save(new, file)
    else:
        file.write_text(json.dumps(new))


def test_checkpoint_without_format_is_read(model, tmp_path):
    first = make_learner(model)
    first.update(mixed_batch(0))
    first.save(tmp_path / "000001")
    change(tmp_path / "000001" / STATE_FILE, format=None)
    second = make_learner(model, seed=5)
    second.load(tmp_path / "000001")
    assert second.version == 1
    assert torch.equal(trained(second), trained(first))
    again = [learner.update(mixed_batch(1)).advantages for learner in (first, second)]
    assert again[0] == again[1]


def test_checkpoint_of_unknown_format_is_rejected(model, tmp_path):
    learner = make_learner(model)
    learner.update(mixed_batch(0))
    learner.save(tmp_path / "000001")
    change(tmp_path / "000001" / STATE_FILE, format=3)
    other = make_learner(model, seed=5)
    before = trained(other)
    said = line_of(other.load, tmp_path / "000001")
    file = tmp_path / "000001" / STATE_FILE
    assert said.startswith(f"{file}: format = 3: unsupported")

    assert other.version == 0 and torch.equal(trained(other), before)


def test_training_starts_from_a_given_adapter(model, tmp_path):
    teacher = make_learner(model)
    teacher.update(mixed_batch(0))
    student = make_learner(model, adapter=teacher.save(tmp_path / "000001"), seed=5)
    assert student.version == 0
    assert torch.equal(trained(student), trained(teacher))
    assert not torch.equal(trained(make_learner(model, seed=5)), trained(teacher))


WAITS = {
    *("tolist", "item", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero"),
    *("bincount", "unique", "masked_select", "equal", "allclose"),
}


class Waits(TorchFunctionMode):
    """Records calls that would wait for the GPU."""

    def __init__(self):
        self.found = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        masked = name == "__getitem__" and getattr(args[1], "dtype", None) is torch.bool
        self.found += [name] * (masked or name in WAITS)
        return function(*args, **kwargs or {})


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "reinforce", "kl_loss": 0.1, "entropy": 0.01},
        {"name": "gspo"},
        {"name": "grpo", "importance": "sequence_mask", "aggregation": "sequence"},
        {"name": "ppo", "critic": {"kind": "adapter"}},
    ],
    ids=lambda algorithm: algorithm["name"],
)
def test_step_syncs_with_the_gpu_once(model, algorithm, monkeypatch):
    """More syncs would leave the GPU idle while the next pack is made."""
    learner, waits = make_learner(model, algorithm=algorithm, micro_batch_size=2), Waits()
    step = learner._step

    def watched(frozen, chosen):
        with waits:
            return step(frozen, chosen)

    monkeypatch.setattr(learner, "_step", watched)
    learner.update(mixed_batch(0))
    assert waits.found == ["tolist"]


def test_bad_updates_are_skipped_and_the_third_raises(model):
    learner = make_learner(model)
    before = trained(learner)
    spoilt = [make_sample([1, 2], [4] * 3, logprobs=[math.nan] * 3) for _ in range(8)]
    for version in range(2):
        update = learner.update(make_batch(spoilt, version))
        assert update.metrics["learn/skipped_steps"] == 1
        assert update.metrics["learn/optimizer_steps"] == 0
        assert update.metrics["learn/loss"] is None
        assert update.metrics["learn/grad_norm"] is None
        assert update.refusals == ["the loss is nan"]
    assert torch.equal(trained(learner), before)
    assert learner.update(mixed_batch(2)).metrics["learn/skipped_steps"] == 0
    assert not torch.equal(trained(learner), before)
    for version in (3, 4):
        learner.update(make_batch(spoilt, version))
    with pytest.raises(FloatingPointError, match="3 updates in a row .* learner.learning_rate"):
        learner.update(make_batch(spoilt, 5))


@pytest.mark.fault("non-finite optimizer step")
def test_step_to_nonfinite_weights_is_skipped_with_a_reason(model, tmp_path, caplog):
    """Loss and gradient are finite; only AdamW's arithmetic overflows fp32."""
    learner = make_learner(model, learning_rate=1e300)
    before = trained(learner)
    for version in range(2):
        update = learner.update(mixed_batch(version))
        (why,) = update.refusals
        assert why == "the weights would not be finite at a learning rate of 1e+300"
        assert math.isfinite(update.metrics["learn/loss"])
        assert why in caplog.text
        learner.save(tmp_path / f"{version}")
    assert torch.equal(trained(learner), before)
    with pytest.raises(FloatingPointError, match="3 updates in a row .* 1e\\+300"):
        learner.update(mixed_batch(2))


def test_nonfinite_weights_and_wrong_versions_are_rejected(model, tmp_path):
    learner = make_learner(model)
    with torch.no_grad():
        learner.optimizer.parameters[0][0, 0] = math.nan
    with pytest.raises(FloatingPointError, match="'main@0' not exported"):
        learner.save(tmp_path / "0")
    assert not list(tmp_path.iterdir())
    adapter = random_adapter(tiny_model(vocab=VOCAB), "start", seed=3)
    tensors = load(adapter.weights)
    next(iter(tensors.values()))[0, 0] = math.inf
    with pytest.raises(ConfigError, match="adapter 'start': .* is not finite; use an intact"):
        make_learner(model, adapter=dataclasses.replace(adapter, weights=save(tensors)))
    with pytest.raises(AssertionError):
        make_learner(model).update(mixed_batch(1))


def test_schedules_continue_across_two_runs(model, tmp_path):
    algorithm = plain(kl_loss=0.1, decay={"rule": "linear"}, reference={"every": 3})
    given = {"schedule": "linear", "warmup_steps": 1, "steps_per_batch": 1, "epochs": 1}

    def follow(updates, learner):
        """Rate and weight of the KL at each update, and whether the reference moved in it."""
        seen = []
        for version in range(updates):
            before = learner.reference.export("reference").weights
            rate, weight = learner.optimizer.learning_rate, learner.coefficients.kl_loss
            learner.update(mixed_batch(version))
            seen.append((rate, weight, learner.reference.export("reference").weights != before))
        return seen

    whole = follow(4, make_learner(model, updates=4, algorithm=algorithm, **given))
    first = make_learner(model, updates=2, algorithm=algorithm, updates_after=2, **given)
    found = follow(2, first)
    first.save(tmp_path / "2")
    second = make_learner(model, updates=2, algorithm=algorithm, updates_before=2, **given)
    second.restore(tmp_path / "2")
    assert found + follow(2, second) == whole
    assert [moved for *_, moved in whole] == [False, False, True, False]
    assert len({rate for rate, *_ in whole}) > 2


def test_spread_weights_ignore_envs_with_equal_rewards(model, gradients):
    """Rewards of these envs alone would change the policy."""

    def gradient(reward, env_weights):
        rewards = (1.0, -1.0, reward, reward)
        made = [
            make_sample([1, 2], [3 + n], each, env="aabb"[n], game_id=n)
            for n, each in enumerate(rewards)
        ]
        make_learner(model, env_weights=env_weights).update(make_batch(made))
        return gradients.pop()

    torch.testing.assert_close(gradient(5.0, "spread"), gradient(0.0, "equal"))
    assert not torch.allclose(gradient(5.0, "equal"), gradient(0.0, "equal"))


@pytest.mark.parametrize("size", [8, 4, 1])
def test_supervised_step_is_maximum_likelihood(model, gradients, size):
    adapter = random_adapter(tiny_model(vocab=VOCAB), "start", seed=3)
    samples = tokens_of(mixed_batch(0).samples)
    learner = make_learner(model, adapter=adapter, micro_batch_size=size)
    update = learner.imitate(samples)

    plain = plain_policy(model)
    TrainedLora(plain).load(adapter)
    parameters = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    loss = -torch.cat([plain_logprobs(plain, tokens) for tokens in samples]).mean()
    loss.backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in parameters])
    assert len(gradients) == 1
    torch.testing.assert_close(gradients[0], expected, atol=1e-5, rtol=1e-4)
    assert update.metrics["learn/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert update.metrics["learn/grad_norm"] == pytest.approx(expected.norm().item(), rel=1e-4)
    assert update.metrics["learn/tokens_trained"] == sum(len(each.token_ids) for each in samples)


def test_supervised_steps_make_versions_and_lower_the_loss(model, tmp_path):
    learner = make_learner(model)
    samples = tokens_of(mixed_batch(0).samples)
    losses = []
    for version in range(1, 5):
        update = learner.imitate(samples)
        assert update.version == learner.version == version
        assert update.metrics["learn/optimizer_steps"] == 1
        losses.append(update.metrics["learn/loss"])
    assert losses == sorted(losses, reverse=True)
    assert learner.save(tmp_path / "000004").name == "main@4"
    resumed = make_learner(model)
    resumed.load(tmp_path / "000004")
    both = [each.imitate(samples).metrics["learn/loss"] for each in (learner, resumed)]
    assert both[0] == both[1] < losses[-1]


def test_bad_supervised_steps_are_skipped_and_third_raises(model):
    learner = make_learner(model)
    before = trained(learner)
    spoilt = [replace(each, temperature=math.nan) for each in tokens_of(mixed_batch(0).samples)]
    for version in (1, 2):
        update = learner.imitate(spoilt)
        assert update.version == version
        assert update.metrics["learn/skipped_steps"] == 1
    assert torch.equal(trained(learner), before)
    with pytest.raises(FloatingPointError, match="3 updates in a row"):
        learner.imitate(spoilt)


def test_bandit_is_learned_from_random_play(model):
    options = {"algorithm": plain(normalize="center"), "learning_rate": 2e-2, "updates": 25}
    _, losses = solve_bandit(model, batch_size=32, **options)
    again = make_learner(model, micro_batch_size=32, **options)
    repeated, _ = play_bandit(again, model, rewarded=True, updates=5)
    assert repeated == losses[:5]


def test_metrics_are_reported_for_each_role(model):
    """Two roles of different rewards, lengths and ends; a role's tokens are its own."""
    roles: list[dict[str, Any]] = [
        {"env": "some/env", "seat": seat, "finish_reason": end, "logprobs": logprobs}
        for seat, end, logprobs in ((0, "stop", [-2.0]), (1, "length", [-4.0] * 2))
    ]
    samples = [
        make_sample([1, 2], [3] * (1 + seat), 1.0 - seat + 0.1 * game, game_id=game, **role)
        for game in range(4)
        for seat, role in enumerate(roles)
    ]

    learner = make_learner(model, steps_per_batch=2, micro_batch_size=2)
    metrics = learner.update(make_batch(samples)).metrics
    for seat in (0, 1):
        role = f"some:env/{seat}"
        assert metrics[f"learn/samples/{role}"] == 4
        assert metrics[f"learn/reward_mean/{role}"] == pytest.approx(1.15 - seat)
        assert metrics[f"learn/reward_std/{role}"] == pytest.approx(np.std([0, 0.1, 0.2, 0.3]))
        assert metrics[f"learn/completion_length_mean/{role}"] == 1 + seat
        assert metrics[f"learn/truncated/{role}"] == 4 * seat
        assert metrics[f"learn/entropy/{role}"] == pytest.approx(math.log(12), abs=0.2)
    assert {f"learn/baseline/some:env/{seat}" for seat in (0, 1)} <= metrics.keys()
    assert metrics["learn/ended_length_mean/some:env/0"] == 1
    assert metrics["learn/ended_length_mean/some:env/1"] is None
    mismatch = [metrics[f"learn/mismatch_abs_mean/some:env/{seat}"] for seat in (0, 1)]
    assert abs(mismatch[0] - mismatch[1]) == pytest.approx(1.0, abs=0.2)


def test_no_transfer_to_gpu_between_forward_and_backward(model, monkeypatch):
    """On a GPU a transfer there would wait for the pass."""
    learner = make_learner(model, micro_batch_size=4, batch_size=8)
    events = []
    forward = learner.policy.forward

    def send(tensor, device):
        events.append("sent")
        return packing.sent(tensor, device)

    def spy(pack, **options):
        events.append("forward")
        scores = forward(pack, **options)
        scores.logprobs_N.register_hook(lambda _: events.append("backward"))
        return scores

    monkeypatch.setattr(columns, "sent", send)
    monkeypatch.setattr(preparation, "sent", send)
    monkeypatch.setattr(learner.policy, "forward", spy)
    made = [make_sample([1, i], [2], float(i % 2), game_id=i) for i in range(8)]
    learner.update(make_batch(made))
    passes = " ".join(events).split("forward")[1:]
    assert "sent" in events and len(passes) == 2
    assert all(one.split()[0] == "backward" for one in passes)
