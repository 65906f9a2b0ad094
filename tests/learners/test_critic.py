"""PPO and A2C: advantages along a seat's turns, training of the critic, learning."""

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.learners import (
    assert_resumes_to_the_bit,
    assert_sizes_agree,
    count_forwards,
    make_batch,
    make_learner,
    make_sample,
    play_bandit,
    solve_bandit,
    tokens_of,
    trained,
)
from unstable.learners.advantages import explained_variance, generalized_advantages
from unstable.learners.batch import FlatBatch
from unstable.learners.losses import value_loss
from unstable.learners.model.packing import pack_samples
from unstable.types import Move, Reward

CRITICS = [
    pytest.param({"name": name} | critic, id=f"{name}-{kind}")
    for name in ("ppo", "a2c")
    for kind, critic in (("head", {}), ("adapter", {"critic": {"kind": "adapter"}}))
]


def make_games(version=0, num_games=6, **changes):
    """Games of two seats with one to three turns each, of different prompts and lengths."""
    samples = [
        make_sample(
            [1, 2, 3, seat, turn, game],
            [4 + (game + turn + version) % 8] * (1 + (game + turn) % 3),
            reward=float((game + seat) % 3 - 1),
            seat=seat,
            turn=2 * turn + seat,
            game_id=num_games * version + game,
            group_id=2 * (num_games * version + game) + seat,
            version=version,
            logprobs=[-2.5] * (1 + (game + turn) % 3),
            **changes,
        )
        for game in range(num_games)
        for seat in range(2)
        for turn in range(1 + game % 3)
    ]
    return make_batch(samples, version)


def values_of(learner, batch):
    """The critic's values of the batch's turns just before an update on it."""
    flat = FlatBatch(batch)
    rewards_S = learner._prepare(flat, learner.algorithm, learner.coefficients).rewards_S
    return torch.from_numpy(learner.critic.estimate(flat, rewards_S, learner.scorer).values_S)


def critic_parameters(learner):
    """The critic's parameters, in one row."""
    groups = learner.optimizer.groups[1:]
    return torch.cat([p.detach().flatten() for group in groups for p in group])


ROWS = st.lists(
    st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=16
)  # reward, value, trajectory


@given(ROWS, st.floats(0.1, 1), st.floats(0, 1), st.randoms(use_true_random=False))
def test_generalized_advantages_equal_brute_force_in_any_order(rows, gamma, decay, random):
    turns = list(range(len(rows)))
    random.shuffle(turns)
    rewards, values, trajectories = (np.array(column) for column in zip(*rows, strict=True))
    found = generalized_advantages(rewards, values, trajectories, turns, gamma=gamma, decay=decay)
    for place, (_, _, trajectory) in enumerate(rows):
        rest = [i for i, r in enumerate(rows) if r[2] == trajectory and turns[i] >= turns[place]]
        rest.sort(key=turns.__getitem__)
        expected = 0.0
        for k, i in enumerate(rest):
            after = values[rest[k + 1]] if k + 1 < len(rest) else 0.0
            expected += (gamma * decay) ** k * (rewards[i] + gamma * after - values[i])
        assert found[place] == pytest.approx(expected, abs=1e-9)


def test_terminal_reward_is_paid_once_and_turn_reward_per_turn():
    def sample(turn, seat, form):
        rewards = {"format": Reward(form, 0.1 * form)}
        terminal = {"any:name": Reward(1.0, 2.0)}
        return make_sample([1], [2], seat=seat, turn=turn, rewards=rewards, terminal=terminal)

    samples = [sample(0, 0, 1.0), sample(2, 0, 0.0), sample(4, 0, 1.0), sample(1, 1, 0.0)]
    batch = FlatBatch(make_batch(samples))
    assert batch.turn_rewards_S.tolist() == pytest.approx([0.1, 0.0, 2.1, 2.0])


def test_explained_variance_by_hand():
    returns = np.array([1.0, -1.0, 1.0, -1.0])
    assert explained_variance(returns, 0 * returns) == 1.0
    assert explained_variance(0 * returns, returns) == 0.0
    assert explained_variance(-returns, 2 * returns) == -3.0
    assert explained_variance(np.ones(3), np.zeros(3)) is None


def test_value_loss_by_hand():
    values = torch.tensor([1.0, 2.0, -1.0, 0.5]).requires_grad_()
    loss = value_loss(values, torch.tensor([3.0, 0.0, 3.0, 0.0]), normalizer=10)
    assert loss.item() == pytest.approx((4 + 4 + 16 + 0.25) / 20)
    loss.backward()
    assert values.grad.tolist() == pytest.approx([-0.2, 0.2, -0.4, 0.05])


@pytest.mark.parametrize("algorithm", CRITICS)
def test_micro_batches_do_not_change_the_gradients(model, gradients, algorithm):
    options = {"algorithm": algorithm | {"kl_reward": 0.1, "kl_loss": 0.1}, "batch_size": 60}
    batches = [make_games(version, num_games=3) for version in range(2)]
    assert_sizes_agree(gradients, model, batches, sizes=(12, 5, 1), epochs=2, **options)


@pytest.mark.parametrize("algorithm", CRITICS)
def test_recomputed_activations_do_not_change_the_gradients(model, gradients, algorithm):
    runs, passes = [], []
    for switch in ("off", "on"):
        learner = make_learner(model, algorithm=algorithm, gradient_checkpointing=switch, epochs=2)
        forwards = count_forwards(learner.policy.layers[0])
        learner.update(make_games(0))
        learner.update(make_games(1))
        runs.append(torch.cat(gradients))
        gradients.clear()
        passes.append(len(forwards))
    # Backward repeats a layer's runs with a gradient: not those for the values, nor for ppo's
    # old logprobs, which take three micro-batches in each of two updates.
    frozen = 2 * 3 * (2 if algorithm["name"] == "ppo" else 1)
    assert passes[1] - passes[0] == passes[0] - frozen > 0
    torch.testing.assert_close(runs[1], runs[0], atol=1e-6, rtol=1e-5)


def test_policy_graph_is_freed_before_critic_backward(model, monkeypatch):
    """Free the policy's graph before the critic's backward, which bounds the peak memory."""
    algorithm = {"name": "ppo", "critic": {"kind": "adapter"}, "kl_loss": 0.1}
    learner = make_learner(model, algorithm=algorithm)
    held: weakref.WeakSet[Any] = weakref.WeakSet()
    at_the_critic: list[Any] = []
    backward = learner.critic.backward

    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor
            held.add(self)

    def spy(*arguments, **options):
        at_the_critic.append(len(held))
        return backward(*arguments, **options)

    monkeypatch.setattr(learner.critic, "backward", spy)
    saved = []
    learner.policy.register_forward_hook(lambda *_: saved.append(len(held)))
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda packed: packed.tensor):
        learner.update(make_games(0))
    assert max(saved) > 50
    assert at_the_critic == [0] * 3


@pytest.mark.parametrize("algorithm", CRITICS)
def test_batch_values_equal_values_of_single_turns(model, algorithm):
    learner = make_learner(model, algorithm=algorithm, micro_batch_size=5, batch_size=20)
    learner.update(make_games(0))
    batch = make_games(1)
    critic = learner.critic
    with torch.no_grad(), critic.in_place():
        expected = [
            critic.values(learner.policy(pack_samples([each])).states_SD).item()
            for each in tokens_of(batch.samples)
        ]
    values = values_of(learner, batch)
    assert values.std() > 1e-4
    assert values.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("algorithm", CRITICS)
def test_critic_learns_without_changing_the_policy(model, algorithm):
    learner = make_learner(model, algorithm=algorithm)
    before, untrained = trained(learner), critic_parameters(learner)
    for version in range(2):
        # A single turn of its env has a normalized advantage of 0, but its value is still wrong.
        update = learner.update(make_batch([make_sample([1, 2, 3], [4], 2.0)], version))
        assert update.advantages == [0.0]
        assert update.metrics["learn/value_loss"] > 0
    assert torch.equal(trained(learner), before)
    assert (critic_parameters(learner) != untrained).float().mean() > 0.5


@pytest.mark.parametrize("algorithm", CRITICS)
def test_values_converge_to_discounted_returns(model, algorithm):
    critic = algorithm.get("critic", {}) | {"learning_rate": 0.05, "gamma": 0.5, "gae_lambda": 0.5}
    options = {"learning_rate": 1e-4, "epochs": 20, "updates": 8}
    learner = make_learner(model, algorithm=algorithm | {"critic": critic}, **options)

    won = {"terminal": {"outcome": Reward(2.0, 2.0)}}
    for version in range(8):
        same = {"version": version, "moves": (Move([4]),), **won}
        samples = [
            make_sample([1, 2 + 3 * turn, 3 + turn], [4], 0.0, turn=turn, **same)
            for turn in range(3)
        ]

        metrics = learner.update(make_batch(samples, version)).metrics
    values = values_of(learner, make_batch(samples, 8))
    assert values.tolist() == pytest.approx([0.5, 1.0, 2.0], abs=0.1)
    assert metrics["learn/value_mean"] == pytest.approx(3.5 / 3, abs=0.1)
    assert metrics["learn/value_loss"] < 0.01
    assert metrics["learn/explained_variance"] > 0.95


def test_critic_starts_at_0_and_its_lora_at_the_policys(model):
    first = make_learner(model, algorithm={"name": "ppo"})
    assert critic_parameters(first).abs().max() == 0.0
    assert first.update(make_games()).metrics["learn/explained_variance"] == 0.0
    adapter = make_learner(model, algorithm={"name": "ppo", "critic": {"kind": "adapter"}})
    own = torch.cat([p.detach().flatten() for p in adapter.optimizer.groups[2]])
    assert torch.equal(own, trained(adapter))


@pytest.mark.parametrize("algorithm", CRITICS)
def test_save_and_load_between_updates_change_nothing(model, tmp_path, algorithm):
    def learner():
        return make_learner(model, algorithm=algorithm, epochs=2, micro_batch_size=4)

    straight, second, _ = assert_resumes_to_the_bit(learner, make_games, tmp_path)
    assert torch.equal(critic_parameters(second), critic_parameters(straight))


@pytest.mark.parametrize("algorithm", CRITICS[1:3])
def test_bandit_is_learned_from_random_play(model, algorithm):
    solve_bandit(model, updates=32, algorithm=algorithm, learning_rate=2e-3)


@pytest.mark.parametrize("algorithm", CRITICS)
def test_same_seed_repeats_losses_and_zero_reward_changes_nothing(model, algorithm):
    def losses(rewarded):
        learner = make_learner(model, algorithm=algorithm, epochs=2, micro_batch_size=16)
        before = trained(learner), critic_parameters(learner)
        found, _ = play_bandit(learner, model, rewarded, updates=4)
        after = trained(learner), critic_parameters(learner)
        return found, all(map(torch.equal, before, after))

    first, unchanged = losses(True)
    assert losses(True) == (first, unchanged)
    assert not unchanged
    assert losses(False) == ([0.0] * 4, True)
