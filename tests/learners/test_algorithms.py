"""Every algorithm learns, is independent of micro-batches, and has the start as reference."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.learners import (
    assert_sizes_agree,
    count_forwards,
    make_batch,
    make_groups,
    make_learner,
    make_sample,
    play_bandit,
    solve_bandit,
    tokens_of,
    trained,
)
from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.config import ALGORITHMS, Aggregation, load, parse
from unstable.learners.algorithms.grpo import GRPO
from unstable.learners.micro_batches import token_normalizers

DOCS = Path(__file__).parent.parent.parent / "docs" / "algorithms.md"
GROUPED = ["rloo", "grpo", "gspo", "cispo"]
CLIPPED = ["reinforce++", *GROUPED]
UNWEIGHED = ["rft", "dpo", "ipo", "slic", "simpo", "kto"]  # without importance weights


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "reinforce", "kl_reward": 0.1, "kl_loss": 0.1},
        {"name": "reinforce++", "ratio": "turn", "aggregation": "turn"},
        {"name": "rloo", "kl_reward": 0.1, "importance": "sequence_mask"},
        {"name": "grpo", "kl_loss": 0.1, "importance": "mask", "aggregation": "constant"},
        {"name": "gspo", "clip_low": 0.2, "clip_high": 0.2},
        {"name": "cispo"},
        {"name": "rloo", "ratio": "token"},
        {"name": "rloo", "ratio": "turn", "importance": "sequence_mask"},
        {"name": "gspo", "ratio": "turn", "clip_low": 0.2, "clip_high": 0.2},
    ],
    ids=lambda algorithm: "-".join(word for word in algorithm.values() if isinstance(word, str)),
)
def test_micro_batches_do_not_change_the_gradient(model, gradients, algorithm):
    options = {"algorithm": algorithm, "batch_size": 48, "epochs": 2}
    assert_sizes_agree(gradients, model, [make_groups(0), make_groups(1)], **options)


@pytest.mark.parametrize(
    "algorithm, whole",
    [
        ({"name": "grpo"}, False),
        ({"name": "rloo"}, True),
        ({"name": "rloo", "ratio": "token"}, False),
        ({"name": "gspo", "ratio": "turn"}, False),
        ({"name": "cispo", "aggregation": "sequence"}, False),
        ({"name": "rloo", "ratio": "turn", "importance": "sequence_mask"}, True),
        ({"name": "grpo", "importance": "sequence_mask"}, False),
        ({"name": "rft", "aggregation": "sequence"}, False),
    ],
)
def test_trajectories_stay_whole_only_if_the_loss_needs_it(model, algorithm, whole):
    learner = make_learner(model, algorithm=algorithm, micro_batch_size=1)
    packs = count_forwards(learner.policy)
    batch = make_groups(won=[1.0, 0.5, 0.25, 0.75])  # all won, all different
    learner.update(batch)
    assert len(packs) == len(batch.trajectories if whole else batch.samples)


@pytest.mark.parametrize("name", CLIPPED)
def test_bandit_is_learned_from_random_play(model, name):
    solve_bandit(model, updates=40, algorithm={"name": name}, epochs=2)


@pytest.mark.parametrize("name", ["grpo", "reinforce"])
def test_same_seed_repeats_losses_and_zero_reward_changes_nothing(model, name):
    def losses(rewarded):
        algorithm = {"name": name, "kl_loss": 0.1 * rewarded}
        learner = make_learner(model, algorithm=algorithm, epochs=2, micro_batch_size=16)

        before = trained(learner)
        found, _ = play_bandit(learner, model, rewarded, updates=4)
        return found, torch.equal(trained(learner), before)

    first, unchanged = losses(True)
    assert losses(True) == (first, unchanged) and not unchanged
    assert losses(False) == ([0.0] * 4, True)


@pytest.mark.parametrize("name", GROUPED)
def test_single_and_tied_groups_have_zero_advantages(model, name):
    learner = make_learner(model, algorithm={"name": name})
    before = trained(learner)
    update = learner.update(make_groups(won=[0.1] * 4))
    assert update.advantages == [0.0] * 16
    assert update.metrics["learn/tied_groups"] == 2
    alone = [make_sample([1, 2], [3], reward=float(i), group_id=i, game_id=i) for i in range(2)]
    update = learner.update(make_batch(alone, 1))
    assert update.advantages == [0.0] * 2
    assert update.metrics["learn/lone_groups"] == update.metrics["learn/groups"] == 2
    assert update.metrics["learn/tied_groups"] == 0
    assert torch.equal(trained(learner), before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_reward_clip_applies_in_every_algorithm(model, name):
    algorithm = {"name": name, "reward_clip": [-0.5, 0.75]}
    batch = make_groups(turns=(1, 1, 1, 1))
    update = make_learner(model, algorithm=algorithm).update(batch)
    bounded = make_groups(turns=(1, 1, 1, 1), won=(0.75, 0.0, -0.5, 0.5))
    expected = make_learner(model, algorithm={"name": name}).update(bounded)
    assert update.metrics["learn/reward_mean"] == pytest.approx(0.125)
    assert update.metrics["learn/reward_shaped_mean"] == pytest.approx(0.1875)
    assert update.advantages == expected.advantages
    assert update.metrics.get("learn/loss") == expected.metrics.get("learn/loss")


def test_rewards_are_clipped_before_kl_is_subtracted(model):
    algorithm = {"name": "reinforce", "normalize": "none", "kl_reward": 0.5}
    algorithm["reward_clip"] = [-1e-3, 1e-3]
    learner = make_learner(model, algorithm=algorithm)
    learner.update(make_groups(0))
    shaped = learner.update(make_groups(1)).metrics
    assert abs(shaped["learn/reward_shaped_mean"]) > 0.01


def test_old_logprobs_are_from_before_the_first_step(model):
    algorithm = {"name": "grpo", "importance": "none", "clip_low": 0.05, "clip_high": 0.05}
    once = make_learner(model, algorithm=algorithm).update(make_groups())
    assert once.metrics["learn/ratio_max"] == 1.0
    learner = make_learner(model, algorithm=algorithm, epochs=4, learning_rate=5e-2)
    metrics = learner.update(make_groups()).metrics
    assert metrics["learn/ratio_max"] > 1.05
    assert 0 < metrics["learn/clipped_high"] < 1
    assert 0 < metrics["learn/clipped_low"] < 1


def test_masked_tokens_are_counted_and_not_trained_on(model):
    for importance in ("mask", "sequence_mask"):
        algorithm = {"name": "grpo", "importance": importance}
        learner = make_learner(model, algorithm=algorithm)
        before = trained(learner)
        samples = [make_sample([1, 2], [3], reward=i, game_id=i, logprobs=[-9.0]) for i in range(4)]
        update = learner.update(make_batch(samples))
        assert update.metrics["learn/importance_masked"] == 1.0
        assert torch.equal(trained(learner), before)


def capped_share(learner, batch, cap):
    """Share of the tokens that the policy is now more than `cap` times as likely to sample."""
    now = np.concatenate(learner.logprobs(tokens_of(batch.samples)))
    sampled = np.concatenate([sample.tokens.logprobs for sample in batch.samples])
    return np.mean(np.exp(now - sampled) > cap)


def part_of(batch, seat):
    """The trajectories of one seat, which are a group."""
    return replace(batch, groups=(batch.groups[seat],))


@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if name not in (*UNWEIGHED, "distill")]
)
def test_capped_share_is_reported_for_each_role(model, name):
    sampled = {"critic": {"gradient": "sampled"}} if name == "vrpo" else {}
    learner = make_learner(model, algorithm={"name": name, "importance_cap": 1.1, **sampled})
    batch = make_groups()
    parts = {"": batch, "/env/0": part_of(batch, 0), "/env/1": part_of(batch, 1)}
    expected = {suffix: capped_share(learner, part, 1.1) for suffix, part in parts.items()}
    metrics = learner.update(batch).metrics
    found = {suffix: metrics[f"learn/importance_capped{suffix}"] for suffix in parts}
    assert found == pytest.approx(expected)
    assert 0 < expected[""] < 1


def test_capped_share_refers_to_policy_before_the_update(model):
    algorithm = {"name": "grpo", "importance_cap": 1.1}
    learner = make_learner(model, algorithm=algorithm, epochs=4, learning_rate=5e-2)

    batch = make_groups()
    expected = capped_share(learner, batch, 1.1)
    assert learner.update(batch).metrics["learn/importance_capped"] == pytest.approx(expected)
    assert capped_share(learner, batch, 1.1) != expected


@pytest.mark.parametrize("importance", ["none", "mask", "sequence_mask"])
def test_loss_without_cap_reports_capped_share_0(model, importance):
    algorithm = {"name": "grpo", "importance": importance, "importance_cap": 1.0}
    learner = make_learner(model, algorithm=algorithm)
    assert capped_share(learner, make_groups(), 1.0) > 0
    assert learner.update(make_groups()).metrics["learn/importance_capped"] == 0.0


@pytest.mark.parametrize("name", UNWEIGHED)
def test_algorithms_without_weights_report_no_capped_share(model, name):
    metrics = make_learner(model, algorithm={"name": name}).update(make_groups()).metrics
    assert not [name for name in metrics if "importance_capped" in name]


def test_kl_after_warm_start_refers_to_the_start(model, tmp_path):
    teacher = make_learner(model)
    teacher.update(make_groups(0))
    adapter = teacher.save(tmp_path / "000001")
    algorithm = {"name": "reinforce", "kl_loss": 1.0}
    learner = make_learner(model, adapter=adapter, algorithm=algorithm)
    assert learner.update(make_groups(0)).metrics["learn/kl_reference"] == 0.0
    learner.save(tmp_path / "next")
    resumed = make_learner(model, algorithm=algorithm)  # starts from other weights
    resumed.load(tmp_path / "next")
    expected = learner.update(make_groups(1)).metrics["learn/kl_reference"]
    assert expected > 0
    assert resumed.update(make_groups(1)).metrics["learn/kl_reference"] == expected


def test_reference_scoring_restores_the_policy(model):
    learner = make_learner(model, algorithm={"name": "grpo", "kl_loss": 0.1})
    learner.update(make_groups(0))
    before = trained(learner)
    samples = tokens_of(make_groups(0).samples)
    own = torch.cat(learner.scorer.logprobs(samples))
    with pytest.raises(KeyError), learner.reference.in_place():
        assert not torch.equal(torch.cat(learner.scorer.logprobs(samples)), own)
        raise KeyError
    assert torch.equal(torch.cat(learner.scorer.logprobs(samples)), own)
    assert torch.equal(trained(learner), before)
    held = [p for p in learner.policy.parameters() if p.requires_grad]
    assert all(a is b for a, b in zip(held, learner.optimizer.parameters, strict=True))


def test_normalizers_by_hand():
    # Two turns of one trajectory and one of another; trajectory ids need not start at 0.
    lengths, trajectories = np.array([2.0, 1.0, 3.0]), np.array([4, 4, 7])
    expected: dict[Aggregation, list[int]] = {
        "token": [6, 6, 6],
        "turn": [3 * 2, 3 * 1, 3 * 3],
        "sequence": [2 * 3, 2 * 3, 2 * 3],
        "constant": [3 * 10] * 3,
    }
    for aggregation, values in expected.items():
        found = token_normalizers(lengths, trajectories, aggregation, 10)
        assert found.tolist() == values, aggregation


def documented(tmp_path, monkeypatch):
    """The algorithms' configs of the examples, whose code can be imported from now on."""
    text = DOCS.read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert all(len(block.splitlines()) <= 30 for block in code)
    (tmp_path / "my_algorithms.py").write_text("\n".join(code), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_algorithms", raising=False)
    algorithms = []
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        (tmp_path / "config.yaml").write_text(block, encoding="utf-8")
        algorithms.append(load(str(tmp_path / "config.yaml")).learner.algorithm)
    return algorithms


def test_documented_extension_of_built_in_takes_effect(model, tmp_path, monkeypatch):
    _, algorithm = documented(tmp_path, monkeypatch)
    update = make_learner(model, algorithm=algorithm).update(make_groups())
    assert min(update.advantages) == -0.5


def test_documented_custom_algorithm_learns(model, tmp_path, monkeypatch):
    algorithm, _ = documented(tmp_path, monkeypatch)
    solve_bandit(model, updates=40, algorithm=algorithm)


class Doubled(GRPO):
    """A user's algorithm that changes one thing of a built-in one."""

    def advantages(self, batch, rewards_S):
        return self.config.args["factor"] * super().advantages(batch, rewards_S)


def test_extension_of_built_in_has_its_settings_and_groups(model, gradients):
    algorithm = {"name": "grpo", "clip_high": 0.3, "scale": "none", "kl_loss": 0.1}
    own = {"target": "tests.learners.test_algorithms:Doubled", "args": {"factor": 2.0}}
    config = parse({"learner": {"algorithm": algorithm | own}})
    assert config.group_size == 8
    expected = make_learner(model, algorithm=algorithm).update(make_groups()).advantages
    learner = make_learner(model, algorithm=config.learner.algorithm)
    assert learner.algorithm.config.clip_high == 0.3
    advantages = learner.update(make_groups()).advantages
    assert advantages == pytest.approx([2 * advantage for advantage in expected])
    # A fresh LoRA has KL 0, so doubled advantages double the gradient.
    torch.testing.assert_close(gradients[1], 2 * gradients[0])


HERE = "tests.learners.test_algorithms:Doubled"


@every_row(
    "algorithm, message, remedy",
    ({"name": "math:Fllor"}, "name = 'math:Fllor': math has no Fllor", "did you mean 'floor'?"),
    ({"name": "math:floor"}, "name = 'math:floor': not a class", "name a class"),
    (
        {"name": HERE},
        f"name = '{HERE}': extends GRPO",
        f"to grpo, learner.algorithm.target to {HERE}",
    ),
    (
        {"name": "cispo", "target": "unstable.learners.clipped:Surrogate"},
        "target = 'unstable",
        "set learner.algorithm.name to reinforce++ or rloo or grpo or gspo or ppo or vrpo",
    ),
)
def test_invalid_class_is_rejected_before_loading(model, algorithm, message, remedy):
    missing = model.model_copy(update={"name": "no such model"})
    said = line_of(make_learner, missing, algorithm=algorithm)
    assert said.startswith(f"learner.algorithm.{message}") and remedy in said
