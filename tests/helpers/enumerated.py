"""A toy whose answers can all be enumerated, so that gradients are known exactly."""

import itertools

import torch

from tests.helpers.learners import make_batch, make_sample, token_sample
from tests.helpers.models import random_adapter, tiny_model
from unstable.config import AdapterConfig
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.logprobs import Aim
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.policy import Policy
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora

WORDS, LONGEST, END = 4, 3, 0
PROMPTS = [([1, 2, 3], 1.0), ([3, 1], 0.5)]
LORA = AdapterConfig(rank=4, alpha=8)


def answers():
    """All that can be sampled: they end with END, or are cut at LONGEST."""
    for length in range(1, LONGEST + 1):
        for words in itertools.product(range(1, WORDS), repeat=length - 1):
            last = range(WORDS) if length == LONGEST else (END,)
            yield from ([*words, word] for word in last)


def samples():
    return [
        token_sample(prompt, answer, temperature)
        for prompt, temperature in PROMPTS
        for answer in answers()
    ]


def peft_model(seed, attention="sdpa"):
    """The toy with a random LoRA; its output layer is scaled so that it has preferences."""
    model = tiny_model(vocab=WORDS, attention=attention)
    model.lm_head.weight.data.mul_(8)
    adapter = random_adapter(tiny_model(vocab=WORDS), "any", seed)
    adapted = attach_lora(model, LORA, seed=0)
    TrainedLora(adapted).load(adapter)
    return adapted


def answer_logprobs(model):
    """Of each answer [A], by a plain forward of each alone."""
    found = []
    for sample in samples():
        ids = torch.tensor([sample.prompt_ids + sample.token_ids])
        logits = model(input_ids=ids).logits[0, len(sample.prompt_ids) - 1 : -1]
        logprobs = torch.log_softmax(logits / sample.temperature, -1)
        found.append(logprobs.gather(1, torch.tensor(sample.token_ids)[:, None]).sum())
    return torch.stack(found)


def gradient(value, module):
    parameters = [p for p in module.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)])


def no_loss(tokens):
    return Loss(0.0 * tokens.logprobs_N.sum(), torch.ones_like(tokens.logprobs_N))


REFERENCE = {"reference": "reverse"}


def scored(seed, reference_seed, old_seed=None, divergences=REFERENCE):
    """All answers as tokens, each weighed by how likely the old policy is to sample it.

    With the divergences, by what they are from, from the policy of the second seed.
    """
    policy, pack = Policy(peft_model(seed, ATTENTION)), pack_samples(samples())
    with torch.no_grad():
        reference = Policy(peft_model(reference_seed, ATTENTION))(pack)
        old = None if old_seed is None else Policy(peft_model(old_seed, ATTENTION))(pack)
    aims = {name: Aim(reference.hidden_ND, each) for name, each in divergences.items()}
    scores = policy(pack, entropy=True, aims=aims)
    old_N = scores.logprobs_N.detach() if old is None else old.logprobs_N
    zeros = torch.zeros(len(samples()))
    chances_A = zeros.index_add(0, pack.samples_N, old_N).exp()
    tokens = Tokens(
        logprobs_N=scores.logprobs_N,
        old_logprobs_N=old_N,
        behaviour_logprobs_N=old_N,
        reference_logprobs_N=None,
        advantages_N=torch.zeros_like(old_N),
        normalizers_N=1 / chances_A[pack.samples_N],
        turns_N=pack.samples_N,
        sequences_N=pack.samples_N,
        entropies_N=scores.entropies_N,
        divergences=scores.divergences,
    )
    return policy, tokens


def mixed(version=0, turns=(1, 2, 3, 2), **changes):
    """Games of two seats that differ in length; every third turn was cut."""
    made = [
        make_sample(
            [1, 2, 3, seat, turn],
            [4 + (game + turn + version) % 8] * (1 + (game + turn) % 3),
            reward=float(game % 3) - seat,
            seat=seat,
            turn=2 * turn + seat,
            game_id=4 * version + game,
            group_id=2 * version + seat,
            version=version,
            finish_reason="length" if (game + turn) % 3 == 2 else "stop",
            logprobs=[-2.5 - 0.1 * turn] * (1 + (game + turn) % 3),
            **changes,
        )
        for game in range(4)
        for seat in range(2)
        for turn in range(turns[game])
    ]
    return make_batch(made, version)
