"""All weights of a model: gradients, copies and files as with a LoRA."""

import pytest
import torch
from safetensors.torch import load
from transformers import AutoModelForCausalLM

from tests.helpers.learners import (
    VOCAB,
    assert_resumes_to_the_bit,
    make_batch,
    make_learner,
    make_sample,
    token_sample,
    tokens_of,
    trained,
)
from tests.helpers.mistakes import refused
from tests.helpers.models import random_whole, tiny_model, with_weights
from unstable.config import ModelConfig
from unstable.models.adapters import read_adapter

TIED = [False, True]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model with an output layer of its own, and one with tied weights."""
    made = {}
    for tied in TIED:
        model = tiny_model(vocab=VOCAB)
        model.config.tie_word_embeddings = tied
        model.tie_weights()
        made[tied] = tmp_path_factory.mktemp("model")
        model.save_pretrained(made[tied])
    return made


def whole(folder, dtype="float32"):
    return ModelConfig(name=str(folder), dtype=dtype, adapter="none")


def plain(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def made(version=0):
    rows = [([1, 2, 3], [4, 5, 6], 1.0, 0.7), ([1, 2, 4, 4], [7], -2.0, 1.0)]
    rows += [([5], [8, 8, 1, 2], 0.5, 1.6), ([5, 1], [3, 9], -0.5, 1.0)] * 3
    return [
        make_sample(prompt, answer, reward, temperature=hot, game_id=i, group_id=i, version=version)
        for i, (prompt, answer, reward, hot) in enumerate(rows)
    ]


def batch(version=0):
    return make_batch(made(version), version)


def plain_gradient(model, samples, rewards):
    """Gradient of minus the token mean of reward x log-probability, by transformers and torch."""
    count = sum(len(sample.token_ids) for sample in samples)
    for sample, reward in zip(samples, rewards, strict=True):
        ids = torch.tensor([[*sample.prompt_ids, *sample.token_ids]])
        logits = model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1]
        logprobs = (logits / sample.temperature).log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(sample.token_ids)[:, None])
        (-reward / count * chosen.sum()).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("tied", TIED)
def test_every_weight_has_the_gradient_of_a_plain_forward(folders, gradients, tied):
    for size in (8, 1):
        learner = make_learner(whole(folders[tied]), micro_batch_size=size)
        learner.imitate(tokens_of(made()))
    model = plain(folders[tied])
    expected = plain_gradient(model, tokens_of(made()), [1.0] * 8)
    assert (expected != 0).float().mean() > 0.9
    for found in gradients:
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert len(expected) == sum(each.numel() for each in model.parameters())


def test_model_computes_in_bfloat16_with_fp32_masters(folders):
    learner = make_learner(whole(folders[False], "bfloat16"), learning_rate=1e-6)
    before = trained(learner)
    learner.update(batch())
    moved = trained(learner) != before
    assert trained(learner).dtype is torch.float32 and moved.float().mean() > 0.8
    # A step of 1e-6 is lost in bfloat16: most computed weights stay unchanged.
    computed = torch.cat([each.flatten() for each in learner.policy.model.parameters()])
    assert computed.dtype is torch.bfloat16
    learner.logprobs(tokens_of(made()))  # a pass refreshes the rounded weights
    now = torch.cat([each.flatten() for each in learner.policy.model.parameters()])
    assert torch.equal(now, trained(learner).bfloat16())


def test_gradients_of_bfloat16_are_summed_in_fp32(folders, gradients):
    samples = tokens_of(made()) * 8
    for size in (64, 1):
        make_learner(whole(folders[False], "bfloat16"), micro_batch_size=size).imitate(samples)
    make_learner(whole(folders[False])).imitate(samples)
    at_once, one_by_one, exact = gradients
    for found in (at_once, one_by_one):
        assert found.dtype is torch.float32
        assert (found - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reference_and_average_swap_weights_in_place(folders, dtype):
    learner = make_learner(
        whole(folders[False], dtype),
        algorithm={"name": "ppo", "critic": {"kind": "adapter"}, "kl_loss": 0.1},
        ema=0.5,
    )
    assert learner.reference is not None and learner.average is not None
    samples = tokens_of(made())
    start = learner.logprobs(samples)
    learner.update(batch(0))
    learner.update(batch(1))
    after = learner.logprobs(samples)
    for copy, other in ((learner.reference, start), (learner.average, None)):
        with copy.in_place():
            found = learner.logprobs(samples)
        assert other is None or found == other
        assert found != after
        assert learner.logprobs(samples) == after
    version = random_whole(tiny_model(vocab=VOCAB), "other", seed=1)
    if dtype == "float32":
        model = with_weights(plain(folders[False]), version).eval()
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        expected = model(input_ids=ids).logits[0, 2:4].log_softmax(-1)[[0, 1], [4, 5]].tolist()
        (found,) = learner.logprobs_under(version, [token_sample([1, 2, 3], [4, 5])])
        assert found == pytest.approx(expected, abs=1e-5)
    assert learner.logprobs(samples) == after


@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resumed_full_weights_continue_identically(folders, tmp_path, dtype, tied):
    def learner():
        algorithm = {"name": "ppo", "kl_loss": 0.1, "reference": {"ema": 0.9}}
        return make_learner(whole(folders[tied], dtype), algorithm=algorithm, ema=0.9, updates=4)

    straight, again, saved = assert_resumes_to_the_bit(learner, batch, tmp_path, 1, 3)
    files = sorted(path.name for path in (tmp_path / "000001").iterdir())
    assert files == ["average", "learner.pt", "model.safetensors"]
    assert read_adapter(tmp_path / "000001", "main@1") == saved
    assert straight.save(tmp_path / "a").weights == again.save(tmp_path / "b").weights

    names = {name: each.shape for name, each in plain(folders[tied]).named_parameters()}
    assert {name: each.shape for name, each in load(saved.weights).items()} == names


def test_restore_resets_all_weights(folders, tmp_path):
    learner = make_learner(whole(folders[True], "bfloat16"), ema=0.9)
    learner.update(batch(0))
    saved = learner.save(tmp_path / "000001")
    scores = learner.logprobs(tokens_of(made()))
    learner.update(batch(1))
    assert learner.logprobs(tokens_of(made())) != scores
    learner.restore(tmp_path / "000001")
    assert learner.logprobs(tokens_of(made())) == scores
    assert learner.snapshot().adapter.weights == saved.weights and learner.version == 2


def test_rejected_weights_and_steps_change_nothing(folders):
    learner = make_learner(whole(folders[False]))
    odd = random_whole(tiny_model(vocab=VOCAB, layers=1), "odd", seed=0)
    refused(r"does not match the model: model.layers.1.*missing", learner.policy.trained.load, odd)
    learner = make_learner(whole(folders[False]), learning_rate=1e38, grad_clip=1e30)
    before = trained(learner)
    report = learner.update(batch())
    assert report.refusals and torch.equal(trained(learner), before)
