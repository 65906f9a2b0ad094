"""All weights of a model: gradients, copies, files and ranks as with a LoRA."""

import pytest
import torch

from tests.helpers.learners import VOCAB, make_batch, make_learner, make_sample, tokens_of, trained
from tests.helpers.models import random_whole, tiny_model, tiny_tokenizer, with_weights
from unstable.config import ConfigError, ModelConfig
from unstable.learners.model.trained import TrainedCopy
from unstable.models.adapters import read_adapter

DTYPES = ["float32", "bfloat16"]


@pytest.fixture(scope="module", params=["free", "tied"])
def folder(request, tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    model = tiny_model(vocab=VOCAB)
    if request.param == "tied":
        model.config.tie_word_embeddings = True
        model.tie_weights()
    model.save_pretrained(made)
    return made


def whole(folder, dtype="float32"):
    return ModelConfig(name=str(folder), dtype=dtype, adapter="none")


def plain(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def samples():
    return [
        make_sample([1, 2, 3], [4, 5, 6], reward=1.0, temperature=0.7),
        make_sample([1, 2, 4, 4], [7], reward=-2.0, game_id=1),
        make_sample([5], [8, 8, 1, 2], reward=0.5, game_id=2),
    ]


def plain_gradients(model, made):
    """Of the learner's loss under plain REINFORCE, by transformers' forward and autograd alone."""
    tokens = sum(len(each.tokens.token_ids) for each in made)
    for each in made:
        sample = each.tokens
        ids = torch.tensor([[*sample.prompt_ids, *sample.token_ids]])
        logits = model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1]
        logprobs = (logits / sample.temperature).log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(sample.token_ids)[:, None]).sum()
        (reward,) = each.sample.rewards.values()
        (-reward.value * chosen / tokens).backward()
    return {name: weight.grad for name, weight in model.named_parameters()}
