"""Teachers: divergences of another implementation, gradients by enumeration, imitation.

The imitated teachers are an adapter and an expert.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import force_setattr
from torch.nn.functional import kl_div

from tests.helpers.enumerated import gradient, mixed, no_loss, peft_model, samples, scored
from tests.helpers.learners import (
    BANDIT_TEMPERATURE,
    VOCAB,
    assert_resumes_to_the_bit,
    assert_sizes_agree,
    make_batch,
    make_learner,
    make_sample,
    plain_policy,
    play_bandit,
    solve_bandit,
    token_sample,
    trained,
    with_moves,
)
from tests.helpers.mistakes import line_of
from tests.helpers.models import random_adapter, tiny_model
from tests.helpers.rows import every_row
from unstable.commands.prepare import check
from unstable.config import ConfigError, parse
from unstable.learners.model.head import Head
from unstable.learners.model.logprobs import DivergenceTarget, selected_logprobs
from unstable.learners.model.trained import TrainedLora
from unstable.learners.regularization import Coefficients, coefficients_at, regularized
from unstable.models.adapters import read_adapter
from unstable.types import Move

# Divergences.

OWN = [[1.0, -0.5, 0.25, 2.0, -1.5], [0.0, 3.0, -2.0, 0.5, 1.0], [-1.0, -1.0, 2.5, 0.75, 0.0]]
OTHER = [[0.5, 0.5, -1.0, 1.0, 0.0], [2.0, -1.0, 0.0, 1.5, 0.25], [-0.5, 1.0, 2.0, -2.0, 0.5]]
TRL = [  # `generalized_jsd_loss` of TRL 1.16.0: values, and gradients of the second row
    (
        ("forward", 0.5, 1.0),
        [0.38826532599508, 1.8626783519277754, 0.44905929385383725],
        [-0.469714291904, 0.759631634494, -0.063568916735, -0.244166258091, 0.017817832236],
    ),
    (
        ("reverse", 0.5, 0.7),
        [0.3359918353161252, 4.148387634668314, 0.38061341574173824],
        [-0.1435784662, 0.699076882007, -0.008246087384, -0.241133848387, -0.306118480036],
    ),
    (
        ("jsd", 0.5, 1.0),
        [0.07468676837343116, 0.4039541666880154, 0.08978784543692364],
        [-0.045350546702, 0.112957572806, -0.006137529083, -0.046278446403, -0.015191050617],
    ),
    (
        ("jsd", 0.9, 0.7),
        [0.030941835662069817, 0.25788059647930084, 0.03080194193346746],
        [-0.010177017466, 0.040329408956, -0.000584492769, -0.015599391476, -0.013968507245],
    ),
]


@every_row("chosen, values, slopes", *TRL)
def test_divergences_equal_trl(chosen, values, slopes):
    divergence, beta, temperature = chosen
    own, other = (torch.tensor(rows, dtype=torch.float64) for rows in (OWN, OTHER))
    head, three = Head(torch.eye(5).double()), torch.full((3,), temperature).double()
    aims = {"teacher": DivergenceTarget(other, divergence, beta)}
    selected = selected_logprobs(own.requires_grad_(), head, torch.arange(3), three, aims=aims)
    found = selected.divergences["teacher"]
    found.sum().backward()
    assert found.tolist() == pytest.approx(values, rel=1e-7)
    assert own.grad.tolist()[1] == pytest.approx(slopes, rel=1e-7)


def plain_divergence(own, other, divergence, beta):
    """Compute divergences of log-probabilities [N, V] by torch's own KL."""

    def kl(first, second):
        return kl_div(second, first, reduction="none", log_target=True).sum(-1)

    if divergence == "jsd":
        mixture = (beta * other.exp() + (1 - beta) * own.exp()).log()
        return beta * kl(other, mixture) + (1 - beta) * kl(own, mixture)
    return kl(own, other) if divergence == "reverse" else kl(other, own)


@every_row("divergence", "reverse", "forward", "jsd")
def test_divergences_are_finite_if_probabilities_underflow(divergence):
    hidden = torch.tensor([[300.0, 0.0, -300.0]]).requires_grad_()
    aims = {"teacher": DivergenceTarget(torch.tensor([[200.0, -100.0, -300.0]]), divergence)}
    one = torch.ones(1)
    found = selected_logprobs(hidden, Head(torch.eye(3)), torch.tensor([0]), one, aims=aims)
    found.divergences["teacher"].sum().backward()
    assert found.divergences["teacher"].isfinite().all() and hidden.grad.isfinite().all()


# Gradients of a move's divergence, by enumeration of all answers.


def next_words(model):
    """Logarithms of the distribution before each token of each answer: [A][T, V]."""
    found = []
    for sample in samples():
        ids = torch.tensor([sample.prompt_ids + sample.token_ids])
        logits = model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1]
        found.append(torch.log_softmax(logits / sample.temperature, -1))
    return found


@pytest.mark.parametrize("old", [None, 3], ids=["on-policy", "later-epoch"])
@pytest.mark.parametrize("divergence", ["reverse", "forward", "jsd"])
def test_the_estimate_is_unbiased_for_every_divergence(divergence, old):
    """Value and gradient match an answer's sum of divergences, in expectation over the policy."""
    plain = peft_model(1)
    own, others = next_words(plain), next_words(peft_model(2))
    cost = torch.zeros(())
    for sample, words_TV, others_TV in zip(samples(), own, others, strict=True):
        tokens = torch.tensor(sample.token_ids)[:, None]
        chance = words_TV.gather(1, tokens).sum().exp()
        cost += chance * plain_divergence(words_TV, others_TV.detach(), divergence, 0.5).sum()
    expected = gradient(cost, plain)

    policy, tokens = scored(1, 2, old, {"teacher": divergence})
    loss = regularized(no_loss(tokens), tokens, Coefficients(0.0, 0.0, 0.0, teacher=1.0), 1e6)
    assert loss.value.item() == pytest.approx(cost.item(), abs=1e-5)
    torch.testing.assert_close(
        loss.means["learn/kl_teacher"], tokens.divergences["teacher"], rtol=0, atol=0
    )
    found = gradient(loss.value, policy)
    assert found.norm() > 0.01
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_summed_reverse_divergence_is_kl_of_whole_answers():
    own, others = next_words(peft_model(1)), next_words(peft_model(2))
    ids = [torch.tensor(sample.token_ids)[:, None] for sample in samples()]
    first, second = (
        torch.stack([words.gather(1, at).sum() for words, at in zip(of, ids, strict=True)])
        for of in (own, others)
    )
    by_word = sum(
        total.exp() * plain_divergence(words, aims, "reverse", 0.5).sum()
        for total, words, aims in zip(first, own, others, strict=True)
    )
    assert by_word.item() == pytest.approx((first.exp() * (first - second)).sum().item(), abs=1e-5)


# In the learner.


@pytest.mark.parametrize("divergence", ["reverse", "forward", "jsd"])
def test_teacher_equal_to_policy_has_zero_gradient(model, gradients, teacher, divergence):
    adapter = read_adapter(Path(teacher), "start")
    given = {"adapter": teacher, "divergence": divergence}
    learner = make_learner(
        model, adapter=adapter, algorithm={"name": "distill", "teacher": given}, batch_size=16
    )
    metrics = learner.update(mixed()).metrics
    assert metrics["learn/kl_teacher"] == pytest.approx(0, abs=1e-6)
    assert gradients[0].abs().max() < 1e-6


def test_reference_and_teacher_terms_add_up(model, gradients, teacher):
    """A KL to the reference, a teacher's and a loss add up; `decay` lowers the two together."""
    adapter = random_adapter(tiny_model(vocab=VOCAB), "start", seed=7)

    def step(**algorithm):
        options = {"batch_size": 16, "epochs": 1, "adapter": adapter}
        learner = make_learner(model, algorithm={"name": "reinforce"} | algorithm, **options)
        learner.policy.trained.load(random_adapter(tiny_model(vocab=VOCAB), "now", seed=9))
        return learner.update(mixed()).metrics

    given = {"adapter": teacher, "weight": 0.3, "divergence": "forward"}
    plain = step()
    one, other = step(kl_loss=0.2), step(teacher=given)
    both = step(kl_loss=0.2, teacher=given)
    base, kl, taught, together = gradients
    assert min((kl - base).norm(), (taught - base).norm()) > 1e-4
    torch.testing.assert_close(together - base, (kl - base) + (taught - base), atol=1e-6, rtol=1e-4)
    assert both["learn/kl_reference"] == one["learn/kl_reference"]
    assert both["learn/kl_teacher"] == other["learn/kl_teacher"] > 0
    assert both["learn/teacher_weight"] == 0.3 and "learn/teacher_weight" not in one
    assert not {"learn/kl_teacher", "learn/kl_reference"} & plain.keys()
    decay = {"rule": "linear", "to": 0.5}
    algorithm = {"name": "ppo", "kl_loss": 0.2, "teacher": given, "decay": decay}
    config = parse({"learner": {"algorithm": algorithm}}).learner.algorithm
    last = coefficients_at(config, 9, 9)
    assert (last.kl_loss, last.teacher) == pytest.approx((0.1, 0.15))


def test_expert_loss_is_kl_from_expert_to_policy(model, gradients):
    batch = with_moves(mixed())
    adapter = random_adapter(tiny_model(vocab=VOCAB), "start", seed=7)
    policy = plain_policy(model)
    TrainedLora(policy).load(adapter)
    terms, entropies = [], []
    for sample in batch.samples:
        start = len(sample.tokens.prompt_ids)
        for token_ids, share in sample.tokens.moves:
            if share:
                ids = torch.tensor([sample.tokens.prompt_ids + token_ids])
                chances = policy(input_ids=ids).logits[0, start - 1 : -1].softmax(-1)
                chance = chances.gather(1, torch.tensor(token_ids)[:, None]).prod()
                terms.append(share * (math.log(share) - chance.log()))
                entropies.append(-share * math.log(share))
    expected = torch.stack(terms).sum() / len(batch.samples)
    learner = make_learner(model, adapter, algorithm={"name": "distill"}, batch_size=16)
    metrics = learner.update(batch).metrics
    kl = metrics["learn/loss"] - metrics["learn/expert_entropy"]
    assert kl == pytest.approx(expected.item(), rel=1e-5)
    assert metrics["learn/expert_entropy"] == pytest.approx(sum(entropies) / len(batch.samples))
    torch.testing.assert_close(gradients[0], gradient(expected, policy), atol=1e-6, rtol=1e-4)


def cases(teacher):
    given = {"adapter": teacher, "weight": 0.5}
    return {
        "adapter": {"name": "distill", "teacher": given | {"divergence": "jsd", "beta": 0.3}},
        "expert": {"name": "distill"},
        "beside": {"name": "ppo", "kl_loss": 0.1, "entropy": 0.1, "teacher": given},
    }


@pytest.mark.parametrize("case", ["adapter", "expert", "beside"])
def test_micro_batches_do_not_change_the_gradient(model, gradients, teacher, case):
    options = {"algorithm": cases(teacher)[case], "batch_size": 16, "epochs": 2}
    batches = [with_moves(mixed(version)) for version in (0, 1)]
    assert_sizes_agree(gradients, model, batches, **options)


@pytest.mark.parametrize("case", ["adapter", "expert", "beside"])
def test_resumed_learner_continues_identically(model, tmp_path, teacher, case):
    def learner():
        return make_learner(model, algorithm=cases(teacher)[case], batch_size=16, epochs=2)

    assert_resumes_to_the_bit(learner, lambda version: with_moves(mixed(version)), tmp_path, 1, 2)


def test_distillation_skips_turns_without_moves_and_rewards(model, teacher):
    learner = make_learner(model, algorithm={"name": "distill"}, batch_size=16)
    before = trained(learner)
    metrics = learner.update(mixed(0)).metrics  # without recorded moves
    assert metrics["learn/optimizer_steps"] == 0 and metrics["learn/expert_entropy"] is None
    assert torch.equal(trained(learner), before)
    for case in ("adapter", "expert"):
        learner = make_learner(model, algorithm=cases(teacher)[case], batch_size=16)
        assert not any(learner.update(with_moves(mixed(0))).advantages)


# Learning.


def test_teacher_of_a_bandit_is_imitated_without_rewards(model, tmp_path):
    taught = {"name": "reinforce", "normalize": "none"}
    first, _ = solve_bandit(model, updates=40, algorithm=taught)
    first.save(tmp_path / "adapter")
    for divergence in ("reverse", "forward"):
        given = {"adapter": str(tmp_path / "adapter"), "divergence": divergence}
        algorithm = {"name": "distill", "teacher": given}
        options = {"learning_rate": 5e-3, "micro_batch_size": 64, "updates": 15}
        learner = make_learner(model, algorithm=algorithm, **options)
        _, outcomes = play_bandit(learner, model, False, 15, batch_size=64)
        assert outcomes[0] < 0.3
        assert sum(outcomes[-3:]) / 3 >= 0.85


def test_expert_mix_is_learned_not_its_likeliest_move(model):
    shares = [0.7, 0.3]
    learner = make_learner(
        model, algorithm={"name": "distill"}, learning_rate=1e-2, updates=60, batch_size=4
    )
    asked = [token_sample([1, 3], ids, BANDIT_TEMPERATURE) for ids in ([7, 2], [9, 2])]
    for version in range(60):
        made = [
            make_sample([1, 3], [5], version=version, temperature=BANDIT_TEMPERATURE, game_id=index)
            for index in range(2)
        ]
        for sample in made:
            moves = tuple(Move(e.token_ids, share) for e, share in zip(asked, shares, strict=True))
            force_setattr(sample.tokens, "moves", moves)
        learner.update(make_batch(made, version))
    chances = np.exp([sum(each) for each in learner.logprobs(asked)])
    assert chances == pytest.approx(shares, abs=0.05)


# Configs rejected before a model is loaded.


def test_mismatched_teacher_is_rejected_before_loading(teacher):
    def problem(adapter: str, **model) -> str:
        algorithm = {"name": "grpo", "teacher": {"adapter": adapter}}
        data = {"model": {"name": "tiny"} | model, "learner": {"algorithm": algorithm}}
        return line_of(lambda: check(parse(data)))

    field = "learner.algorithm.teacher.adapter"
    assert problem("/nowhere").startswith(f"{field} = '/nowhere': has no adapter_config.json")
    assert problem(teacher).startswith(f"{field} = {teacher!r}: its ")
    assert Path(teacher).is_dir()


def test_moves_are_recorded_if_an_expert_teaches(teacher):
    def kept(**algorithm):
        return parse({"learner": {"algorithm": {"name": "distill"} | algorithm}}).moves_kept

    assert kept() == "expert"
    assert kept(teacher={"adapter": teacher}) == "none"
    with pytest.raises(ConfigError, match=r"sampling.moves = 'legal': .* needs 'expert'"):
        parse({"learner": {"algorithm": {"name": "distill"}}, "sampling": {"moves": "legal"}})
