"""Options that keep self-play stable: effect of each, and where it is rejected."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.learners import (
    assert_resumes_to_the_bit,
    count_forwards,
    make_batch,
    make_learner,
    make_sample,
    mixed_batch,
    tokens_of,
    trained,
)
from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.cli import SHORT_FORMS, parse_options
from unstable.config import ALGORITHMS, LearnerConfig, dump, load, parse
from unstable.learners.optimizer import scheduled_rate
from unstable.learners.preparation import top_advantage_atoms
from unstable.models.adapters import read_adapter
from unstable.models.checkpoint import AVERAGE
from unstable.records.folder import RunFolder
from unstable.types import PlayerId

NO_CRITIC = {"name": "ppo", "critic": None}
PREFERENCES = {n: {"pairs": "position"} for n in ("dpo", "ipo", "slic", "simpo")} | {"kto": {}}
"""Preference algorithms, with settings that find pairs in `mixed_batch`."""


# PPO without a critic.


def test_ppo_without_critic_uses_role_baseline_and_its_loss(model, gradients):
    shared = {"baseline_decay": 0.5, "normalize": "zscore"}
    ppo = make_learner(model, algorithm=NO_CRITIC | shared)
    reinforce = make_learner(model, algorithm={"name": "reinforce"} | shared)
    clipped = make_learner(model, algorithm={"name": "reinforce++"})
    for version in range(3):
        found, expected = (each.update(mixed_batch(version)) for each in (ppo, reinforce))
        assert found.advantages == expected.advantages
        for seat in (0, 1):
            name = f"learn/baseline/env/{seat}"
            assert found.metrics[name] == expected.metrics[name]
    assert ppo.critic is None and len(ppo.optimizer.groups) == 1
    # With the advantages of REINFORCE++ (z-scored rewards) the losses are equal.
    forgetful = NO_CRITIC | {"normalize": "zscore"}
    gradients.clear()
    make_learner(model, algorithm=forgetful).update(mixed_batch())
    clipped.update(mixed_batch())
    torch.testing.assert_close(gradients[0], gradients[1])


def test_command_line_accepts_null(tmp_path):
    words = ["--learner.algorithm.name", "ppo", "--learner.algorithm.critic", "null"]
    config = load("default", parse_options(words, SHORT_FORMS))
    algorithm = config.learner.algorithm
    found = (algorithm.critic, algorithm.baseline_decay, algorithm.normalize)
    assert found == (None, 0.95, "center")

    (tmp_path / "config.yaml").write_text(dump(config), encoding="utf-8")
    assert load(str(tmp_path / "config.yaml")) == config
    assert load("default", {"learner.algorithm.name": "ppo"}).learner.algorithm.critic is not None


# Learning rates.


def test_schedules_end_at_final_rate():
    def rates(**changes):
        config = LearnerConfig(learning_rate=2.0, warmup_steps=2, **changes)
        return [scheduled_rate(config, step, 6) for step in range(8)]

    assert rates(schedule="constant") == [1, *[2] * 7]
    linear = rates(schedule="linear", final_rate=0.2)
    assert linear == pytest.approx([1, 2, 2, 1.6, 1.2, 0.8, 0.4, 0.4])
    cosine = rates(schedule="cosine", final_rate=0.5)
    assert cosine == pytest.approx([1, 2, 2, 1.5 + 0.5**1.5, 1.5, 1.5 - 0.5**1.5, 1, 1])
    assert rates(schedule="linear")[6] == 0.0
    soon = rates(schedule="linear", final_rate=0.2, decay_fraction=2 / 3)  # four steps of six
    assert soon == pytest.approx([1, 2, 2, 1.2, 0.4, 0.4, 0.4, 0.4])


def test_scaled_rate_persists_and_multiplies(model):
    learner = make_learner(model, schedule="linear", final_rate=0.5, updates=4)
    rates = []
    for version in range(4):
        rates.append(learner.update(mixed_batch(version)).metrics["learn/learning_rate"])
        if version:
            learner.scale_rate(0.5)
    assert rates == pytest.approx([1e-2, 0.875e-2, 0.75e-2 / 2, 0.625e-2 / 4])


# Saved states.

MOVING = {"kl_loss": 0.1, "kl_reward": 0.05, "entropy": 0.01, "decay": {"rule": "power"}}


@pytest.mark.parametrize("reference", [{"ema": 0.7}, {"every": 2}])
def test_save_and_load_between_updates_change_nothing(model, tmp_path, reference):
    def learner():
        algorithm = NO_CRITIC | MOVING | {"reference": reference}
        return make_learner(model, algorithm=algorithm, ema=0.6, epochs=2, seed=3)

    straight, second, _ = assert_resumes_to_the_bit(learner, mixed_batch, tmp_path, 3, 5)
    for name in ("reference", "average"):
        pair = [getattr(each, name).parameters for each in (straight, second)]
        assert all(map(torch.equal, *pair))


def test_a_scaled_rate_is_saved(model, tmp_path):
    first = make_learner(model)
    first.update(mixed_batch(0))
    first.scale_rate(0.3)
    first.save(tmp_path / "000001")
    second = make_learner(model)
    second.load(tmp_path / "000001")
    assert second.update(mixed_batch(1)).metrics["learn/learning_rate"] == pytest.approx(3e-3)


def test_restore_takes_saved_weights_and_keeps_counters(model, tmp_path):

    def learner():
        algorithm = NO_CRITIC | MOVING | {"reference": {"ema": 0.7}}
        return make_learner(model, algorithm=algorithm, ema=0.6, schedule="linear", updates=9)

    first = learner()
    first.update(mixed_batch(0))
    first.save(tmp_path / "000001")
    then = [trained(first), *first.reference.state_dict(), *first.average.state_dict()]
    then = [each.clone() for each in then]
    baseline = first.algorithm.state_dict()
    first.update(mixed_batch(1))
    first.scale_rate(0.5)
    first.restore(tmp_path / "000001")
    now = [trained(first), *first.reference.state_dict(), *first.average.state_dict()]
    assert all(map(torch.equal, then, now))
    assert first.algorithm.state_dict() == baseline
    assert first.version == 2 and first.optimizer.steps == 2
    update = first.update(mixed_batch(2))
    assert update.version == 3
    assert update.metrics["learn/learning_rate"] == pytest.approx(0.5 * 1e-2 * 7 / 9)
    # AdamW's moments are restored too: the next step equals one of a learner loaded from there.
    other = learner()
    other.load(tmp_path / "000001")
    other.version, other.optimizer.steps = 2, 2
    other.scale_rate(0.5)
    other.update(mixed_batch(2))
    assert torch.equal(trained(first), trained(other))
    first.save(tmp_path / "000003")
    with pytest.raises(FileExistsError):
        first.save(tmp_path / "000001")


def test_average_is_running_mean_and_a_usable_adapter(model, tmp_path):
    learner = make_learner(model, ema=0.75)
    weights = [trained(learner)]
    for version in range(2):
        learner.update(mixed_batch(version))
        weights.append(trained(learner))
    folder = RunFolder(tmp_path)
    learner.save(folder.checkpoint(2))
    average = read_adapter(folder.checkpoint(2) / AVERAGE, "mean")
    start, one, two = weights
    expected = 0.75 * (0.75 * start + 0.25 * one) + 0.25 * two
    torch.testing.assert_close(trained(make_learner(model, adapter=average)), expected)
    opponent = {"kind": "checkpoint", "path": str(folder.checkpoint(2) / AVERAGE)}
    options = {"opponents": {"fixed": [opponent]}}
    folder_of_it = parse(options).opponents.fixed[0].adapter_folder
    assert folder_of_it is not None and read_adapter(folder_of_it, "mean") == average
    learner.update(mixed_batch(2))
    learner.save(folder.checkpoint(3))
    folder.prune(1, adapters={PlayerId.policy(2)})
    kept = sorted(path.name for path in folder.checkpoint(2).iterdir())
    assert kept == ["adapter_config.json", "adapter_model.safetensors"]
    assert (folder.checkpoint(3) / AVERAGE / "adapter_model.safetensors").is_file()


# Moving references.


def test_reference_is_replaced_at_its_interval(model):
    algorithm = {"name": "reinforce", "kl_loss": 0.1, "reference": {"every": 2}}
    learner = make_learner(model, algorithm=algorithm)
    was_own = []
    for version in range(5):
        kl = learner.update(mixed_batch(version)).metrics["learn/kl_reference"]
        was_own.append(kl == pytest.approx(0, abs=1e-7))
    assert was_own == [True, False, True, False, True]


def test_ema_reference_follows_the_policy(model):
    algorithm = {"name": "reinforce", "kl_reward": 0.1, "reference": {"ema": 0.9}}
    learner = make_learner(model, algorithm=algorithm)
    expected = trained(learner)
    for version in range(3):
        learner.update(mixed_batch(version))
        expected = 0.9 * expected + 0.1 * trained(learner)
        found = torch.cat([p.detach().flatten() for p in learner.reference.parameters])
        torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-5)


# Early stops.


def test_update_stops_early_at_max_kl(model):
    options = {"algorithm": NO_CRITIC, "epochs": 4, "steps_per_batch": 2, "micro_batch_size": 4}
    metrics = make_learner(model, **options).update(mixed_batch()).metrics
    assert (metrics["learn/epochs_made"], metrics["learn/optimizer_steps"]) == (4, 8)
    for limit in (1e-6, metrics["learn/kl_old"] / 4, 1e6):
        learner = make_learner(model, max_kl=limit, **options)
        found = learner.update(mixed_batch()).metrics

        made = found["learn/optimizer_steps"]
        assert found["learn/epochs_made"] == made / 2
        assert (found["learn/kl_old"] > limit) == (made < 8)
        assert made == {1e-6: 2, 1e6: 8}.get(limit, made)
        assert 2 < made < 8 or limit in (1e-6, 1e6)
        assert learner.optimizer.steps == 8  # schedules follow updates


def test_kl_old_is_the_mean_kl_per_turn(model):
    learner = make_learner(model, epochs=2, max_kl=1e6)
    samples = tokens_of(mixed_batch().samples)
    old = learner.logprobs(samples)
    once = make_learner(model)
    once.update(mixed_batch())
    new = once.logprobs(samples)
    turns = [
        sum(math.exp(a - b) - 1 - (a - b) for a, b in zip(now, was, strict=True))
        for now, was in zip(new, old, strict=True)
    ]
    found = learner.update(mixed_batch()).metrics["learn/kl_old"]
    assert found == pytest.approx(np.mean(turns), rel=1e-3)


@pytest.mark.parametrize("old", ["learner", "engine"])
def test_staleness_does_not_count_toward_max_kl(model, old):
    """Samples of a very different policy, and steps that hardly change the trained one."""
    options = {"epochs": 2, "steps_per_batch": 2, "micro_batch_size": 4, "learning_rate": 1e-7}
    algorithm = NO_CRITIC | {"old_logprobs": old}
    learner = make_learner(model, algorithm=algorithm, max_kl=1e-3, **options)
    stale = mixed_batch()
    for sample in stale.samples:
        sample.tokens.logprobs[:] = [each - 1.5 for each in sample.tokens.logprobs]
    found = learner.update(stale).metrics
    assert found["learn/optimizer_steps"] == 4
    assert 0 <= found["learn/kl_old"] < 1e-6
    assert found["learn/mismatch_kl"] > 0.1
    # A large step ends the update for either kind of old logprobs.
    far = make_learner(model, algorithm=algorithm, max_kl=1e-3, **options | {"learning_rate": 1e-2})
    assert far.update(mixed_batch()).metrics["learn/optimizer_steps"] < 4


def test_mismatch_covers_tokens_without_weight(model):
    """Equal rewards of an env give its turns the weight 0."""
    found = []
    for env_weights in ("equal", "spread"):
        algorithm = NO_CRITIC | {"old_logprobs": "engine"}
        learner = make_learner(model, algorithm=algorithm, env_weights=env_weights)
        made = [make_sample([1, n], [4], n // 2 * n, env="ab"[n // 2], game_id=n) for n in range(4)]
        found.append(learner.update(make_batch(made)).metrics)
    assert found[0]["learn/mismatch_kl"] == pytest.approx(found[1]["learn/mismatch_kl"])


# Truncated turns.


@pytest.mark.parametrize("name", ALGORITHMS)
def test_truncated_weight_scales_the_gradient(model, gradients, teacher, name):
    terms = {"entropy": 0.1, "kl_loss": 0.1, "teacher": {"adapter": teacher}}
    outcome = {"outcome": 1.0} if name == "rft" else {}
    for weight in (1.0, 0.5, 0.25):
        algorithm = {"name": name, "truncated_weight": weight} | terms | PREFERENCES.get(name, {})
        if name == "vrpo":  # over all moves, only answers that are not listed are sampled ones
            algorithm |= {"critic": {"gradient": "sampled"}}
        learner = make_learner(model, algorithm=algorithm)
        learner.update(mixed_batch(cut=(1, 2, 5), **outcome))
    policy = [gradient for gradient in gradients if len(gradient) == len(gradients[0])]
    whole, half, quarter = policy[:3]
    assert (whole - half).norm() > 0.005 * whole.norm() > 0
    torch.testing.assert_close(quarter, half + 0.5 * (half - whole), atol=1e-6, rtol=1e-4)


def test_dropped_turns_count_in_no_mean(model, gradients):
    cut = (1, 2, 5)
    for weight in (1e-9, 0.0):
        algorithm = {"name": "rloo", "aggregation": "token", "truncated_weight": weight}
        make_learner(model, algorithm=algorithm).update(mixed_batch(cut=cut))
    sizes = [sample.tokens.num_scored for sample in mixed_batch(cut=cut).samples]
    kept = sum(size for index, size in enumerate(sizes) if index not in cut)
    torch.testing.assert_close(gradients[1], gradients[0] * sum(sizes) / kept, atol=1e-6, rtol=1e-4)


# The largest advantages.


def test_top_advantage_atoms_by_hand():
    advantages = np.array([0.5, -2.0, 0.5, 1.0, 0.0])
    turns = [np.array([i]) for i in range(5)]

    def kept(atoms, share, counts=(1.0, 1.0, 1.0, 1.0, 1.0)):
        found = top_advantage_atoms(atoms, advantages, np.array(counts), share)
        return [atom.tolist() for atom in found]

    assert kept(turns, 0.4) == [[1], [3]]
    assert kept(turns, 0.41) == [[0], [1], [3]]  # the first of equal ones
    assert kept(turns, 1.0) == [[0], [1], [2], [3], [4]]
    # Mean |advantage|: 1.25, .5 and .5.
    games = [np.array([0, 1]), np.array([2]), np.array([3, 4])]
    assert kept(games, 0.3) == [[0, 1]]
    assert kept(games, 0.5) == [[0, 1], [2]]
    assert kept(games, 0.3, (1.0, 0.01, 1.0, 1.0, 0.1)) == [[3, 4]]  # .51, .5 and .91
    assert kept([], 0.5) == []


@every_row("share, expected", (1.0, -0.025), (0.5, -0.025), (0.25, 0.425))
def test_top_advantage_selection_is_biased(share, expected):
    """The figures of docs/algorithms.md: a sure 1, against 3 in three of ten, played equally."""
    rewards = np.array([1.0] * 50 + [3.0] * 15 + [0.0] * 35)
    score = np.array([-0.5] * 50 + [0.5] * 50)  # gradient of the second move's logit
    advantages = rewards - rewards.mean()
    atoms = [np.array([i]) for i in range(100)]
    kept = top_advantage_atoms(atoms, advantages, np.ones(100), share)
    chosen = np.concatenate(kept)
    assert (advantages * score)[chosen].mean() == pytest.approx(expected)
    if share == 0.25:
        assert (advantages * score)[chosen].sum() / 100 == pytest.approx(0.106, abs=0.001)


@pytest.mark.parametrize(("name", "whole"), [("reinforce", False), ("rloo", True)])
def test_only_top_advantages_are_trained_on(model, monkeypatch, gradients, name, whole):
    learner = make_learner(model, algorithm={"name": name, "top_advantage_fraction": 0.5})
    batch = mixed_batch()
    update = learner.update(batch)
    places = np.argsort(-np.abs(update.advantages), kind="stable")[:4]
    if not whole:
        other = make_learner(model, algorithm={"name": name})
        kept = np.isin(np.arange(8), places)
        monkeypatch.setattr(other.algorithm, "trained", lambda *_: kept)
        other.update(batch)
        assert torch.equal(gradients[0], gradients[1])
    assert update.metrics["learn/optimizer_steps"] == 1
    assert len(update.advantages) == 8


# Old logprobs.


def test_engine_logprobs_replace_the_old_logprobs_pass(model):
    runs = {}
    for old in ("learner", "engine"):
        algorithm = NO_CRITIC | {"old_logprobs": old}
        learner = make_learner(model, algorithm=algorithm, epochs=2)
        own = np.concatenate(learner.logprobs(tokens_of(mixed_batch().samples)))
        forwards = count_forwards(learner.policy.layers[0])
        runs[old] = learner.update(mixed_batch()).metrics, len(forwards)
        sampled = np.concatenate([sample.tokens.logprobs for sample in mixed_batch().samples])
    assert runs["learner"][1] == 3 and runs["engine"][1] == 2
    alone = make_learner(model, algorithm=NO_CRITIC | {"old_logprobs": "engine"})
    once = alone.update(mixed_batch()).metrics
    assert once["learn/ratio_max"] == pytest.approx(np.exp(own - sampled).max(), rel=1e-4)
    assert once["learn/importance_capped"] == 0.0  # the engine is also the behavior policy


# Rejected settings.


A = "learner.algorithm"
REFUSED: list[tuple[dict[str, Any], str, str]] = [  # settings of learner, or of learner.algorithm
    ({"final_rate": 0.1}, "final_rate = 0.1", "set learner.schedule to linear or cosine"),
    ({"ema": 1.0}, "ema = 1.0", "less than 1"),
    ({"max_kl": 0}, "max_kl = 0", "greater than 0"),
    ({"name": "ppo", "normalize": "none"}, "normalize = 'none'", f"set {A}.critic.normalize, or"),
    ({"name": "ppo", "baseline_decay": 0.5}, "baseline_decay = 0.5", f"set {A}.critic to null"),
    ({"name": "reinforce", "old_logprobs": "engine"}, "old_logprobs = 'engine'", "leave it out"),
    (
        {"name": "rft", "top_advantage_fraction": 0.5},
        "top_advantage_fraction = 0.5",
        "leave it out",
    ),
    ({"name": "grpo", "kl_opponents": True}, "kl_opponents = true", f"set {A}.kl_reward above 0"),
    ({"name": "grpo", "reference": {"every": 3}}, "reference.every = 3", f"{A}.kl_reward above 0"),
    (
        {"name": "grpo", "kl_loss": 1, "reference": {"every": 3, "ema": 0.5}},
        "reference.every = 3: conflicts with ema = 0.5",
        "leave one of them out",
    ),
    ({"name": "grpo", "decay": {"rule": "power"}}, "decay.rule = 'power'", f"set {A}.kl_loss, "),
    (
        {"name": "grpo", "entropy": 1, "decay": {"rule": "power", "to": 0.5}},
        "decay.to = 0.5",
        f"set {A}.decay.rule to linear, or leave it out",
    ),
    ({"name": "a2c", "critic": None}, "critic = None", "write keys and values below it"),
    ({"name": "grpo", "top_advantage_fraction": 0}, "top_advantage_fraction = 0", "should be "),
    ({"name": "grpo", "teacher": {"weight": 2.0}}, "teacher.weight = 2.0", f"{A}.teacher.adapter"),
    (
        {"name": "grpo", "teacher": {"adapter": "x", "beta": 0.1}},
        "teacher.beta = 0.1",
        f"set {A}.teacher.divergence to jsd, or leave it out",
    ),
    ({"name": "distill", "kl_loss": 0.1}, "kl_loss = 0.1", f"{A}.teacher.adapter, or leave it out"),
    *(
        ({"name": name, "kl_reward": 0.1}, "kl_reward = 0.1", f"set {A}.kl_loss instead")
        for name in ("distill", "vrpo")
    ),
    *(
        ({"name": name} | setting, f"{field} = {value}: has no effect in {name}", words)
        for name in PREFERENCES
        for setting, words in (
            ({"kl_reward": 0.1}, " set "),
            ({"top_advantage_fraction": 0.5}, "leave it out"),
        )
        for field, value in setting.items()
    ),
]


@every_row("section, message, remedy", *REFUSED)
def test_settings_without_effect_are_rejected(section, message, remedy):
    path = "algorithm." if "name" in section else ""
    said = line_of(parse, {"learner": {"algorithm": section} if path else section})
    assert said.startswith(f"learner.{path}{message}") and remedy in said


def test_documented_configs_load(tmp_path):
    text = (Path(__file__).parent.parent.parent / "docs/algorithms.md").read_text(encoding="utf-8")
    for title in ("## Preferences", "## Regularization and stability"):
        block = text.partition(title)[2].split("```")[1]
        (tmp_path / f"{title}.yaml").write_text(block, encoding="utf-8")
    preferences = load(str(tmp_path / "## Preferences.yaml"))
    assert preferences.groups.by == "branch" and preferences.learner.algorithm.sft_weight
    learner = load(str(tmp_path / f"{title}.yaml"), {"learner.micro_batch_size": 8}).learner
    assert learner.algorithm.critic is None and learner.algorithm.reference.ema == 0.98
    assert learner.ema and learner.max_kl and learner.final_rate


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_accepts_its_options(model, teacher, name):
    """All at once; the loss is finite."""
    algorithm = {"name": name, "entropy": 0.01, "kl_loss": 0.02, "truncated_weight": 0.5}
    algorithm |= {"reference": {"every": 1}, "decay": {"rule": "linear", "to": 0.5}}
    algorithm |= {"teacher": {"adapter": teacher}}
    algorithm |= PREFERENCES.get(name, {})
    if name not in ("rft", "distill", *PREFERENCES):
        algorithm |= {"top_advantage_fraction": 0.75}
        algorithm |= {} if name == "vrpo" else {"kl_reward": 0.1, "kl_opponents": True}
    if name == "kto" or name not in ("rft", "reinforce", "a2c", *PREFERENCES):
        algorithm |= {"old_logprobs": "engine"}
    learner = make_learner(model, algorithm=algorithm, epochs=2, ema=0.9, max_kl=10.0)
    for version in range(2):
        metrics = learner.update(mixed_batch(version, cut=(0, 3), outcome=1.0)).metrics
        assert metrics["learn/optimizer_steps"] == 2
        assert math.isfinite(metrics["learn/loss"])
