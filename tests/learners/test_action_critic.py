"""VRPO: transitions by hand, exact gradients over all moves, a critic that learns."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.helpers.learners import (
    VOCAB,
    assert_resumes_to_the_bit,
    assert_sizes_agree,
    make_batch,
    make_learner,
    make_sample,
    make_tokens,
    solve_bandit,
    token_sample,
    unlike_batch,
)
from tests.helpers.mistakes import refused
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.batch import FlatBatch, Floats, Ints
from unstable.learners.experience import Experience
from unstable.learners.model.packing import pack_samples
from unstable.learners.saved_critic import SavedCritic
from unstable.learners.turns import StateMove, Transitions
from unstable.learners.value_models import ValueNetwork
from unstable.types import Move, Reward

HOT = 0.3  # temperature that makes the tiny model's answers vary
ANSWERS = [[word, last] for word in range(VOCAB) for last in range(VOCAB)]
LEGAL = [12 * word for word in (4, 5, 6)]  # indices of the answers that end with 0, for three words
MOVES = tuple(Move(ANSWERS[place]) for place in LEGAL)
KINDS = ["network", "adapter"]
OTHER_CRITICS = [("network", "seat"), ("adapter", "state")]


def vrpo(**critic: Any) -> dict[str, Any]:
    return {"name": "vrpo", "critic": {"steps": 3, "batch_size": 16, **critic}}


def two_seats() -> FlatBatch:
    """A game with turns of seats 0, 1, 0, whose last turns have the rewards 2 and -2."""
    same: dict[str, Any] = {"game_id": 7, "moves": MOVES}
    return FlatBatch(
        make_batch(
            [
                make_sample([1, 2], [4, 0], 0.5, turn=3, **same),
                make_sample([1, 3], [5, 0], 2.0, turn=5, **same),
                make_sample([1, 4], [9, 9], -2.0, turn=4, seat=1, **same),
            ]
        )
    )


def test_transitions_of_state_follow_all_seats_and_of_view_its_own() -> None:
    batch = two_seats()
    whole = Transitions.of(batch, batch.turn_rewards_S, sees_state=True)
    assert whole.next_S.tolist() == [2, -1, 1]
    assert whole.rewards_SK[:, :2].tolist() == [[0.5, 0.0], [2.0, -2.0], [0.0, 0.0]]
    assert whole.known_SK[:, :3].tolist() == [[True, True, False]] * 3
    assert whole.places_S.tolist() == [0, 1, -1]
    assert [pair.tokens.prompt_ids for pair in whole.pairs[::3]] == [
        [3, 1, 2],
        [3, 1, 3],
        [3, 1, 4],
    ]

    own = Transitions.of(batch, batch.turn_rewards_S, sees_state=False)
    assert own.next_S.tolist() == [1, -1, -1]
    assert own.rewards_SK[:, :2].tolist() == [[0.5, 0.0], [2.0, 0.0], [0.0, -2.0]]
    assert own.known_SK[:, :2].tolist() == [[True, False]] * 2 + [[False, True]]
    assert [pair.tokens.prompt_ids for pair in own.pairs[::3]] == [[1, 2], [1, 3], [1, 4]]

    values_SK: Floats = np.arange(48.0, dtype=np.float64).reshape(3, 16)
    assert whole.targets(values_SK)[:, :2].tolist() == [[32.5, 33.0], [2.0, -2.0], [16.0, 17.0]]


def remembered(sees: str = "state") -> tuple[Experience, Transitions, Ints]:
    batch = two_seats()
    turns = Transitions.of(batch, batch.turn_rewards_S, sees_state=sees == "state")
    experience = Experience(sees)
    points_S = experience.number(turns)
    experience.count(turns, points_S)
    return experience, turns, points_S


def test_values_join_what_followed_with_those_of_the_model() -> None:
    experience, turns, points_S = remembered()
    likely = (0.1, 0.1, 0.2, *[0.5] * 6)
    logprobs = [torch.tensor([math.log(p), 0.0]) for p in likely]
    likely_M, shares_M = experience.score(np.arange(9), logprobs)
    assert likely_M == pytest.approx(likely)
    assert shares_M == pytest.approx([0.25, 0.25, 0.5, *[1 / 3] * 6])
    model_PK = np.arange(9.0 * 16, dtype=np.float64).reshape(9, 16)
    means = experience.means(shares_M, model_PK)
    assert means[:, 0] == pytest.approx([20.0, 64.0, 112.0])

    # Turn 1 ends the game by pair 4; turn 0 plays pair 0, then seat 1 an answer that is not listed.
    values_PK = experience.values(experience.counted(), shares_M, model_PK)
    assert values_PK[4, :2] == pytest.approx([(2 + 2 * 64) / 3, (-2 + 2 * 65) / 3])
    assert values_PK[0, :2] == pytest.approx([112.5 / 3, (113 + 2 * 1) / 3])
    untouched = [1, 2, 3, 5, 6, 7, 8]
    assert np.array_equal(values_PK[untouched], model_PK[untouched])

    for _ in range(60):  # as it recurs, the model's values count for less
        experience.count(turns, experience.number(turns))
    values_PK = experience.values(experience.counted(), shares_M, model_PK)
    assert values_PK[4, :2] == pytest.approx([2.0, -2.0], abs=4.0)
    assert points_S.tolist() == [0, 1, 2]


def test_outcomes_that_do_not_recur_are_forgotten() -> None:
    experience, turns, _ = remembered("seat")
    for number in range(200):
        rewards_SK = turns.rewards_SK + number
        experience.count(replace(turns, rewards_SK=rewards_SK), experience.number(turns))
    assert 100 < len(experience.counted().pairs_R) < 200


def test_visits_follow_the_current_policy_to_hidden_states() -> None:
    """Two deals, 2:1; seat 0 sees the deal and plays 4 or 5, after which seat 1 sees only "5"."""
    made = []
    for number, (deal, move) in enumerate([(7, 5), (7, 5), (8, 5), (7, 4), (8, 4), (7, 4)]):
        same: dict[str, Any] = {"game_id": number, "moves": (Move([4]), Move([5]))}
        made.append(make_sample([1, deal], [move], 0.0, turn=0, **same))
        if move == 5:
            seat: dict[str, Any] = {"turn": 1, "seat": 1, "state": [3, deal, 5]}
            made.append(make_sample([1, 9], [4], 0.0, **seat, **same))
    flat = FlatBatch(make_batch(made))
    turns = Transitions.of(flat, flat.turn_rewards_S, sees_state=True)
    experience = Experience("state")
    points_S = experience.number(turns)
    experience.count(turns, points_S)
    played = {7: 0.001, 8: 0.3}  # now, however often it was played
    likely_M = np.full(len(experience.owners_M), 0.5)
    for index in turns.firsts.tolist():
        start = experience.starts_P[points_S[index]]
        now = played[made[index].sample.tokens.state[-1]]
        likely_M[start : start + 2] = 0.6 - now, now  # 0.4 of all answers are illegal
    expected = {(3, 1, 7): 2 / 3, (3, 1, 8): 1 / 3, (3, 7, 5): 0.002 / 3, (3, 8, 5): 0.1}
    visits = experience.visits(experience.counted(), likely_M, points_S[turns.firsts]) / 6
    states = [tuple(experience.pairs.found[p].tokens.prompt_ids) for p in experience.pairs_M]
    found = dict(zip((states[start] for start in experience.starts_P), visits, strict=True))
    assert found == pytest.approx(expected)


def test_visits_are_those_of_each_env_and_follow_answers_that_are_no_moves() -> None:
    """In env "a" each game retries after an illegal answer; updates have other shares of envs."""
    experience = Experience("state")
    for first, other in ((6, 2), (2, 6)):
        made = []
        for number in range(first + other):
            env = "a" if number < first else "b"
            same: dict[str, Any] = {"game_id": number, "env": env, "moves": MOVES}
            if env == "a":
                made.append(make_sample([1, 2], [9, 9], 0.0, turn=0, **same))
            made.append(make_sample([1, 3], [4, 0], 1.0, turn=1, **same))
        flat = FlatBatch(make_batch(made))
        turns = Transitions.of(flat, flat.turn_rewards_S, sees_state=True)
        points_S = experience.number(turns)
        experience.count(turns, points_S)
    likely_M = np.full(9, 0.1)
    visits = experience.visits(experience.counted(), likely_M, points_S[turns.firsts])
    assert visits == pytest.approx([2.0, 2.0, 6.0])


def test_gradient_covers_all_new_and_half_as_many_earlier_prompts() -> None:
    experience = Experience("state")
    for version in range(2):
        made = [
            make_sample([1, 4 * version + i], [4, 0], 0.0, game_id=i, moves=MOVES) for i in range(4)
        ]
        flat = FlatBatch(make_batch(made))
        points_S = experience.number(Transitions.of(flat, flat.turn_rewards_S, sees_state=True))
    experience.score(np.arange(24), [torch.zeros(1)] * 24)
    drawn = [experience.draw(points_S, np.random.default_rng(seed)) for seed in range(9)]
    assert all(examples[4:].all() and examples[:4].sum() == 2 for examples, _ in drawn)
    assert np.any([examples for examples, _ in drawn], axis=0).all()
    assert all(answers.tolist() == list(range(24)) for _, answers in drawn)
    assert len(experience.draw(points_S[:1], np.random.default_rng(0))[1]) == 6


@pytest.mark.parametrize("sees", ["state", "seat"])
def test_oldest_points_are_forgotten_and_the_rest_is_saved(sees: str) -> None:
    experience, _, _ = remembered(sees)
    new = make_sample([1, 9], [4, 0], 1.0, game_id=8, moves=MOVES)
    known = make_sample([1, 2], [4, 0], 3.0, game_id=9, moves=MOVES)
    later = FlatBatch(make_batch([new, known]))
    turns = Transitions.of(later, later.turn_rewards_S, sees_state=sees == "state")
    experience.count(turns, experience.number(turns))
    logprobs = [torch.tensor([-0.1 * place]) for place in range(12)]
    _, shares_M = experience.score(np.arange(12), logprobs)
    values_PK = experience.values(experience.counted(), shares_M, np.zeros((12, 16)))
    means_PK = experience.means(shares_M, values_PK)
    assert experience.newest(12, means_PK) is experience
    assert Experience.unpacked(experience.packed(), sees).packed() == experience.packed()

    less, kept = experience.newest(11, means_PK), [0, 1, 2, 9, 10, 11]
    assert [pair.tokens.prompt_ids[-1] for pair in less.pairs.found] == [2, 2, 2, 9, 9, 9]
    assert less.number(turns).tolist() == [1, 0]
    assert less.logprobs == [experience.logprobs[place] for place in kept]
    # The first move has the values of the forgotten point that it led to.
    less_PK = less.values(less.counted(), shares_M[kept], np.zeros((6, 16)))
    assert less_PK == pytest.approx(values_PK[kept]) and values_PK[0, 0] > 0.8
    visits = less.visits(less.counted(), shares_M[kept], np.array([0]))
    assert visits.sum() == pytest.approx(1.0) and visits[0] > visits[1] > 0.3
    assert len(experience.pairs.found) == 12


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=12))
def test_rewards_add_up_along_each_game(turns: list[tuple[int, int]]) -> None:
    made = [
        make_sample([1, index], [4, 0], float(index), turn=index, game_id=game, seat=seat)
        for index, (game, seat) in enumerate(turns)
    ]
    batch = FlatBatch(make_batch(made))
    for sees_state in (True, False):
        found = Transitions.of(batch, batch.turn_rewards_S, sees_state=sees_state)
        assert found.rewards_SK.sum() == pytest.approx(batch.turn_rewards_S.sum())
        games = len({game for game, _ in turns}) if sees_state else len(set(turns))
        assert (found.next_S < 0).sum() == games


def scores(learner: Any, prompt: list[int]) -> Any:
    """Score the tokens of all two-token answers."""
    answers = [token_sample(prompt, each, HOT) for each in ANSWERS]
    return learner.policy(pack_samples(answers), entropy=True)


def logprobs(learner: Any, prompt: list[int]) -> Tensor:
    """Log-probabilities of all two-token answers, by token [V * V, 2]."""
    return scores(learner, prompt).logprobs_N.view(-1, 2)


def spoil(learner: Any) -> None:
    """Perturb the critic and the policy, so that neither is at its start."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in learner.critic.model.parameters:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for parameter in learner.policy.trained.parameters:
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


def test_explained_variance_is_of_values_from_before_the_turns(model) -> None:
    """Rewards by chance: as soon as the critic has seen them, it explains most of them."""
    rewards = np.random.default_rng(0).choice([-1.0, 1.0], 40).tolist()
    made = [
        make_sample([1, *divmod(number, 7)], [4, 0], reward, game_id=number, moves=MOVES)
        for number, reward in enumerate(rewards)
    ]
    batch = FlatBatch(make_batch(made))
    learner = make_learner(model, algorithm=vrpo())
    found = []
    for _ in range(2):
        learner.critic.estimate(batch, batch.turn_rewards_S, np.ones(40), learner.scorer)
        found.append(learner.critic.metrics["learn/explained_variance"])
    assert found[0] < 0.1 and found[1] > 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_step_over_all_moves_has_gradient_by_enumeration(model, gradients, kind) -> None:
    """Two prompts with two turns each, in different states; one answer is illegal.

    A move counts by its probability, a positive advantage by at least a fifth; the illegal answer
    counts by its importance. Entropy and means are by the probabilities themselves.
    """

    def make() -> Any:
        algorithm = vrpo(kind=kind) | {"entropy": 0.5}
        learner = make_learner(model, algorithm=algorithm, micro_batch_size=50)
        spoil(learner)
        return learner

    same: dict[str, Any] = {"temperature": HOT, "moves": MOVES, "logprobs": [-2.0, -0.1]}
    turns = [
        make_sample([1, 2], [4, 0], 1.0, **same),
        make_sample([1, 2], [5, 0], -1.0, game_id=1, state=[9, 9], **same),
        make_sample([1, 3], [6, 0], 0.5, game_id=2, **same),
        make_sample([1, 3], [9, 0], -2.0, game_id=3, **same),
    ]
    flat = FlatBatch(make_batch(turns))
    learner, before = make(), make()
    metrics = learner.update(flat.batch).metrics
    learner.critic.estimate(flat, flat.turn_rewards_S, np.ones(4), before.scorer, learns=False)
    values_PK = learner.critic.model.values()  # 3 points of 3 moves
    for place, chosen, reward in ((0, 0, 1.0), (1, 1, -1.0), (2, 2, 0.5)):
        values_PK[3 * place + chosen, 0] = (reward + 2 * values_PK[3 * place + chosen, 0]) / 3
    rows = (0, 3, 6, 6)
    expected_reward, gains, counts, entropies = torch.zeros(()), 0.0, 0.0, 0.0
    advantages: dict[int, list[Tensor]] = {}
    for place, turn in enumerate(turns):
        by_token_A2 = scores(before, turn.tokens.prompt_ids).entropies_N.view(-1, 2)
        entropies_A = by_token_A2.mean(1).detach()
        logprobs_A2 = logprobs(before, turn.tokens.prompt_ids)
        own_A = logprobs_A2.sum(1)
        # The first token decides the entropy of the second.
        regularizers_A = by_token_A2.sum(1) + by_token_A2[:, 1].detach() * logprobs_A2[:, 0]
        likely_M = own_A[LEGAL].exp()
        shares_M = (likely_M / likely_M.sum()).detach()
        values_M = torch.from_numpy(values_PK[rows[place] : rows[place] + 3, 0]).float()
        value = shares_M @ values_M
        of_prompt = advantages.setdefault(turn.tokens.prompt_ids[1], [])
        of_prompt.append(values_M - value)
        if len(of_prompt) == 2:  # both turns are known
            mean_M = (of_prompt[0] + of_prompt[1]) / 2
            raised_M = torch.where(mean_M > 0, likely_M.detach().clip(0.2), likely_M.detach())
            assert (raised_M > likely_M).any()
            expected_reward = expected_reward + 2 * (raised_M * mean_M) @ own_A[LEGAL]
            gains += 2 * float(raised_M @ mean_M)
        if place == 3:
            illegal = own_A[ANSWERS.index([9, 0])]
            weight = min(float(illegal.detach().exp()) / math.exp(-2.1), 2.0)
            expected_reward = expected_reward + weight * (-2.0 - value) * illegal
            gains += weight * (-2.0 - float(value))
            expected_reward = expected_reward + weight * regularizers_A[ANSWERS.index([9, 0])] / 2
            counts += weight
            entropies += weight * float(entropies_A[ANSWERS.index([9, 0])])
        expected_reward = expected_reward + likely_M.detach() @ regularizers_A[LEGAL] / 2
        counts += float(likely_M.detach().sum())
        entropies += float(likely_M.detach() @ entropies_A[LEGAL])
    parameters = before.policy.trained.parameters
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(-expected_reward, parameters)])
    found = gradients[0][: len(expected)]
    # Adam is invariant to the scale, here a mean over the tokens.
    assert torch.cosine_similarity(found, expected, dim=0) == pytest.approx(1.0, abs=1e-5)
    assert expected.abs().max() > 1e-3
    assert metrics["learn/loss"] == pytest.approx(-(gains + entropies / 2) / counts, rel=1e-4)
    assert metrics["learn/entropy"] == pytest.approx(entropies / counts, rel=1e-4)


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("nats", [1.0, 40.0, 100.0, 300.0])
def test_rare_moves_have_a_finite_loss_and_a_bounded_weight(model, nats, advantage) -> None:
    learner = make_learner(model, algorithm=vrpo(kind="network"))
    now = torch.tensor([-nats], requires_grad=True)
    counts = max(math.exp(-nats), 1e-20)
    options = {
        "enumerated_N": torch.tensor([True]),
        "normalizers_N": torch.tensor([1 / counts]),
        "advantages_N": torch.tensor([advantage]),
    }
    loss = learner.algorithm.loss(make_tokens(now, torch.tensor([0]), old=now.detach(), **options))
    loss.value.backward()
    assert loss.value.isfinite() and now.grad is not None
    weight = max(counts, 0.2) if advantage > 0 else counts
    assert float(now.grad[0]) == pytest.approx(-weight * advantage, rel=1e-4)


def test_only_answers_that_are_not_listed_have_a_bounded_pull(model) -> None:
    """At a ratio of 50, with an advantage of 0; the cap is 2."""
    learner = make_learner(model, algorithm=vrpo(kind="network"))
    sample = make_sample([1, 2], [9, 0], 0.0, moves=MOVES)
    flat = FlatBatch(make_batch([sample]))
    prepared = learner._prepare(flat, learner.algorithm, learner.coefficients)
    assert prepared.enumerated_N.tolist() == [True] * 6 + [False] * 2  # moves of two tokens
    for enumerated, ratio in ((True, 50.0), (False, 2.0)):
        now = torch.tensor([-1.0], requires_grad=True)
        options = {"enumerated_N": torch.tensor([enumerated]), "normalizers_N": torch.ones(1)}
        old = now.detach() - math.log(50)
        tokens = make_tokens(now, torch.tensor([0]), old=old, **options)
        learner.algorithm.loss(tokens).value.backward()
        assert now.grad is not None
        assert now.grad.item() == pytest.approx(0.5 * ratio * math.log(50), rel=1e-5)


def test_later_steps_weight_a_move_by_its_probability_before_the_update(model) -> None:
    """The importance weight cancels the ratio: the gradient is A grad log pi, as in NeuRD."""
    learner = make_learner(model, algorithm=vrpo(kind="network"), epochs=3, learning_rate=3e-2)
    loss, seen = learner.algorithm.loss, list[tuple[Tensor, Tensor]]()

    def kept(tokens: Tokens) -> Loss:
        found: Loss = loss(tokens)
        seen.append((found.ratios_N.detach(), learner.algorithm.importance_weights(tokens)))
        return found

    learner.algorithm.loss = kept
    learner.update(unlike_batch(0))
    ratios, weights = map(torch.cat, zip(*seen, strict=True))
    assert (ratios - 1).abs().max() > 0.1
    assert torch.allclose((ratios * weights)[ratios > 0.5], torch.ones(()), atol=1e-5)


def test_saved_critic_has_the_values_of_the_learners(model, tmp_path) -> None:
    batch = FlatBatch(make_batch([make_sample([1, 2], [4, 0], 1.0, moves=MOVES, state=[9])]))
    for number, (kind, sees) in enumerate((("network", "state"), *OTHER_CRITICS)):
        learner = make_learner(model, algorithm=vrpo(kind=kind, sees=sees))
        spoil(learner)
        learner.update(batch.batch)
        learner.snapshot().write(folder := tmp_path / str(number))
        if (kind, sees) != ("network", "state"):
            asked = SavedCritic.read, folder, batch.envs_S[0], "here"
            refused("^here: .* has no critic of kind network", *asked)
            continue
        turns = Transitions.of(batch, batch.turn_rewards_S, sees_state=True)
        learner.critic.model.take(turns.pairs)
        answers = [move.token_ids for move in MOVES]
        refused("has not seen Go; give another", SavedCritic.read, folder, "Go", "here")
        critic = SavedCritic.read(folder, batch.envs_S[0], "here")
        found = critic.values(batch.envs_S[0], [9], answers, 2)
        assert found == learner.critic.model.values()[:, :2].tolist() and found[0][0] != 0


def test_critic_learns_values_of_moves_and_of_states_before_them(model) -> None:
    """Seat 1 answers 4 or 5 alike, seat 0 then wins by 4 and loses by 5; seat 0 moves first."""
    critic = {"steps": 60, "batch_size": 32, "learning_rate": 1e-2}
    learner = make_learner(model, algorithm=vrpo(**critic), learning_rate=1e-9)
    moves = (Move([4]), Move([5]))
    for version in range(6):
        made = []
        for index, (first, second) in enumerate(product((4, 5), repeat=2)):
            pay = 1.0 if second == 4 else -1.0
            pay = pay if first == 4 else 0.5
            same: dict[str, Any] = {"game_id": 4 * version + index, "moves": moves}
            same["version"] = version
            terminal = {"terminal": {"outcome": Reward(pay, pay)}}
            minus = {"terminal": {"outcome": Reward(-pay, -pay)}}
            made += [
                make_sample([1, 2], [first], 0.0, state=[1], **same, **terminal),
                make_sample(
                    [1, 3], [second], 0.0, turn=1, seat=1, state=[2, first], **same, **minus
                ),
            ]
        batch = make_batch(made, version)
        learner.update(batch)
    flat = FlatBatch(batch)
    turns = Transitions.of(flat, flat.turn_rewards_S, sees_state=True)
    learner.critic.model.take(turns.pairs)
    values = learner.critic.model.values()
    shares = logprobs_of(learner, [1, 3], moves)
    mean = float(shares[0] - shares[1])
    assert values[:2, 0] == pytest.approx([mean, 0.5], abs=0.1)
    replies = [row for row, owner in enumerate(turns.owners_M) if turns.seats_S[owner] == 1]
    assert values[replies[:2], 1] == pytest.approx([-1.0, 1.0], abs=0.1)
    assert values[replies[:2], 0] == pytest.approx([1.0, -1.0], abs=0.1)


def logprobs_of(learner: Any, prompt: list[int], moves: tuple[Move, ...]) -> Tensor:
    """Probabilities of the moves, normalized."""
    answers = [token_sample(prompt, list(move.token_ids)) for move in moves]
    shares = learner.policy(pack_samples(answers)).logprobs_N.detach().exp()
    return shares / shares.sum()


@pytest.mark.parametrize(
    "kind",
    ["network", pytest.param("adapter", marks=[pytest.mark.slow, pytest.mark.one_core])],
)
def test_bandit_is_learned_from_random_play(model, kind) -> None:
    critic = {"kind": kind, "steps": 10 if kind == "network" else 5, "batch_size": 32}
    solve_bandit(model, updates=32, algorithm=vrpo(**critic), learning_rate=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_between_updates_change_nothing(model, tmp_path, kind) -> None:
    def learner() -> Any:
        return make_learner(model, algorithm=vrpo(kind=kind, replay=40), epochs=2)

    assert_resumes_to_the_bit(learner, unlike_batch, tmp_path)


def test_fork_uses_its_own_critics_rate_and_weight_decay(model, tmp_path) -> None:
    def learner(rate: float, decay: float) -> Any:
        algorithm = vrpo(kind="network", learning_rate=rate)
        return make_learner(model, algorithm=algorithm, weight_decay=decay)

    first, second = learner(1e-3, 0.0), learner(1e-2, 0.1)
    first.update(unlike_batch(0))
    second.critic.load_state_dict(first.critic.state_dict())
    second.optimizer.load_moments(first.optimizer.state_dict())
    assert second.critic.state_dict()["optimizer"]["param_groups"][0]["lr"] == 1e-2
    assert second.optimizer.adamw.param_groups[0]["weight_decay"] == 0.1


def test_critic_of_a_rounded_base_sees_its_own_steps(model) -> None:
    learner = make_learner(model, algorithm=vrpo(kind="adapter"))
    weight = learner.critic.model.parameters[0]
    before = weight._version
    learner.update(unlike_batch(0))
    assert weight._version >= before + learner.critic.config.steps  # copies depend on it


def test_spread_weights_leave_moves_of_absent_games_unweighted(model) -> None:
    learner = make_learner(model, algorithm=vrpo(kind="network"), env_weights="spread")
    for version, env in enumerate(("one", "two")):
        made = [
            make_sample([w, 2], [4, 0], w / 2, game_id=w, env=env, moves=MOVES, state=[w])
            for w in range(1, 9)
        ]
        update = learner.update(make_batch(made, version))
    assert update.metrics["learn/optimizer_steps"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_do_not_change_the_gradients(model, gradients, kind) -> None:
    options = {"algorithm": vrpo(kind=kind) | {"kl_loss": 0.1, "entropy": 0.1}, "batch_size": 60}
    batches = [unlike_batch(version) for version in range(2)]
    assert_sizes_agree(gradients, model, batches, sizes=(12, 5, 1), epochs=2, **options)


def test_batch_without_a_listed_move_is_learned_from_as_sampled(model) -> None:
    """A base model that makes no legal move has no transitions, and learns to avoid its answers."""
    learner = make_learner(model, algorithm=vrpo())
    samples = [make_sample([1, 2], [9, 9], -1.0, game_id=i, moves=MOVES) for i in range(2)]
    update = learner.update(make_batch(samples))
    assert update.advantages == [-1.0, -1.0]
    assert "learn/value_loss" not in update.metrics
    assert update.metrics["learn/explained_variance"] is None
    assert update.metrics["learn/grad_norm"] > 0


def test_features_beyond_all_embeddings_share_them(model) -> None:
    network = ValueNetwork(seed=0)
    torch.nn.init.normal_(network.parameters[-2], generator=torch.Generator().manual_seed(1))
    tokens = [token_sample([word, word + 1, word + 2], [word]) for word in range(0, 4000, 2)]
    network.take([StateMove("env", each) for each in tokens])
    assert len(network.state_dict()["numbers"]) == 2047
    values = network.values()
    assert len(np.unique(values[:, 0])) > 1900
    network.take([StateMove("env", each) for each in tokens[1000:]])
    assert np.array_equal(network.values(), values[1000:])
    assert network.values().shape == (1000, 16)


def test_loss_on_other_turns_leaves_critic_unchanged(model) -> None:
    learner = make_learner(model, algorithm=vrpo(kind="network"))
    learner.update(unlike_batch(0))
    before = learner.snapshot().state["algorithm"]["critic"]
    metrics = dict(learner.critic.metrics)
    assert learner.loss_on(unlike_batch(1)).tokens > 0
    assert learner.critic.metrics == metrics
    after = learner.snapshot().state["algorithm"]["critic"]
    assert after["experience"] == before["experience"]
    assert after["model"]["numbers"] == before["model"]["numbers"]
    for name, value in before["model"]["network"].items():
        assert torch.equal(value, after["model"]["network"][name])


@pytest.mark.parametrize(("sees", "kept"), [("state", "state"), ("seat", "legal")])
def test_turns_without_moves_or_state_are_rejected(model, sees, kept) -> None:
    learner = make_learner(model, algorithm=vrpo(sees=sees))
    lacking: dict[str, Any] = {"moves": ()} if sees == "seat" else {"state": []}
    refused(
        f"1 of 2 turns were recorded without sampling.moves = {kept}; start a new run",
        learner.update,
        make_batch([make_sample([1], [4]), make_sample([1], [4], **lacking)]),
    )
