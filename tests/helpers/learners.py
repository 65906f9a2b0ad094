"""Samples made by hand and a learner of a tiny model, for the learner's tests."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from msgspec.structs import force_setattr

from tests.helpers.models import random_adapter, tiny_model
from unstable.config import AdapterConfig, LearnerConfig, ModelConfig
from unstable.learners.algorithm import Tokens
from unstable.learners.learner import PolicyLearner
from unstable.learners.model.trained import TrainedLora
from unstable.learners.ranks import ALONE
from unstable.models.adapters import attach_lora, write_adapter
from unstable.types import (
    Batch,
    Completion,
    Group,
    Move,
    PackedBatch,
    PackedTrajectory,
    Reward,
    Sample,
    SampledTokens,
    Segment,
    TokenSample,
    Trajectory,
)

VOCAB = 12


class Made(NamedTuple):
    """A sample with what its trajectory says of it."""

    sample: Sample
    trajectory: dict[str, Any]

    @property
    def tokens(self) -> SampledTokens:
        return self.sample.tokens


def make_sample(
    prompt_ids: list[int], token_ids: list[int], reward: float = 1.0, **changes: Any
) -> Made:
    """A sample that only says what a test cares about; it was as likely as e^-1 a token.

    By default there was one other legal move.
    """
    other = [*token_ids[:-1], (token_ids[-1] + 1) % VOCAB]
    trajectory: dict[str, Any] = {
        **{"game_id": 0, "env": "env", "seat": 0, "group_id": 0},
        **{"outcome": reward, "forfeit": False, "terminal": {}},
    }
    own: dict[str, Any] = {"turn": 0, "rewards": {"own": Reward(reward, reward)}}
    tokens: dict[str, Any] = {
        **{"prompt_ids": prompt_ids, "temperature": 1.0, "version": 0, "prompt_cut": 0},
        "moves": (Move(token_ids), Move(other)),
        "state": [3, *prompt_ids],
    }
    completion: dict[str, Any] = {
        **{"token_ids": token_ids, "logprobs": [-1.0] * len(token_ids)},
        **{"finish_reason": "stop", "adapter": None},
    }
    for name, value in changes.items():
        (place,) = (each for each in (trajectory, own, tokens, completion) if name in each)
        place[name] = value
    sampled = SampledTokens(segments=(Completion(**completion),), **tokens)
    return Made(Sample(tokens=sampled, **own), trajectory)


def token_sample(
    prompt_ids: list[int], token_ids: list[int], temperature: float = 1.0
) -> TokenSample:
    """A prompt and an answer, all of which is scored."""
    segments = (Segment(token_ids=token_ids),)
    return TokenSample(prompt_ids=prompt_ids, segments=segments, temperature=temperature)


def with_moves(batch: Batch) -> Batch:
    """Each turn's position has two to four moves of unlike lengths, one never the expert's."""
    for index, sample in enumerate(batch.samples):
        answers = [[4 + index % 3], [7, 8], [9, 10, 11], [5, 6]][: 2 + index % 3]
        shares = [[1.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.2, 0.3, 0.0]][index % 3]
        moves = tuple(map(Move, answers, shares))
        force_setattr(sample.tokens, "moves", moves)
    return batch


def make_batch(made: Sequence[Made], version: int = 0) -> Batch:
    """A batch of samples: those of one game and seat are a trajectory, in order of appearance.

    The samples of a trajectory should stand together, as the batch has them so.
    """
    trajectories: dict[tuple[int, int], tuple[dict[str, Any], list[Sample]]] = {}
    for sample, fields in made:
        _, samples = trajectories.setdefault((fields["game_id"], fields["seat"]), (fields, []))
        samples.append(sample)
    groups: dict[int, list[Trajectory]] = {}
    for fields, samples in trajectories.values():
        own = {name: value for name, value in fields.items() if name != "terminal"}
        trajectory = Trajectory(samples=tuple(samples), rewards=fields["terminal"], **own)
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return Batch(
        version=version,
        groups=tuple(Group(trajectories=tuple(members)) for members in groups.values()),
    )


def tokens_of(made: Sequence[Made]) -> list[TokenSample]:
    """Return the tokens of each sample."""
    return [each.tokens for each in made]


def save_model(folder):
    """A tiny model with `VOCAB` words in `folder`, as a learner's config names it."""
    tiny_model(vocab=VOCAB).save_pretrained(folder)
    return ModelConfig(name=str(folder), dtype="float32", adapter=AdapterConfig(rank=4, alpha=8))


def save_teacher(folder):
    """A folder's name, in which is an adapter of that model with preferences of its own."""
    write_adapter(random_adapter(tiny_model(vocab=VOCAB), "teacher", seed=5), folder)
    return str(folder)


def mixed_batch(version=0, size=8, cut=(), **changes):
    """Turns of two seats that differ in all that matters; those at the places `cut` were cut."""
    samples = [
        make_sample(
            [1, 2, 3, i % 4],
            [4 + (i + version) % 8] * (1 + i % 3),
            reward=float(i % 3 - 1),
            seat=i % 2,
            game_id=100 * version + i // 2,
            group_id=100 * version + i // 4,
            version=version,
            temperature=1.0 + i % 2,
            finish_reason="length" if i in cut else "stop",
            logprobs=[-2.5 + 0.02 * i] * (1 + i % 3),
            **changes,
        )
        for i in range(size)
    ]
    return make_batch(samples, version)


def make_groups(version=0, won=(1.0, 0.0, -1.0, 0.5), turns=(1, 2, 3, 2), cost=0.0, **changes):
    """Two seats' groups of four trajectories that differ in length; `cost` is of the second's."""
    samples = [
        make_sample(
            [1, 2, 3, seat, turn],
            [4 + (game + turn + version) % 8] * (1 + (game + turn) % 3),
            **{"reward": won[game] - cost * seat, "seat": seat, "turn": 2 * turn + seat}
            | {"game_id": 4 * version + game, "group_id": 2 * version + seat, "version": version}
            | {"logprobs": [-2.5 - 0.1 * turn] * (1 + (game + turn) % 3)}
            | {
                name: each(game, turn) if callable(each) else each for name, each in changes.items()
            },
        )
        for game in range(4)
        for seat in range(2)
        for turn in range(turns[game])
    ]
    return make_batch(samples, version)


def unlike_samples(count=8, **changes):
    """Turns that differ in prompt, answer and reward, each of a game of its own."""
    return [
        make_sample([1, 2, i], [4 + i % 3] * (1 + i % 2), float(i % 3), game_id=i, **changes)
        for i in range(count)
    ]


def unlike_batch(version: int) -> Batch:
    return make_batch(unlike_samples(version=version), version)


def make_tokens(logprobs, turns, sequences=None, *, old=None, reference=None, **fields):
    """Tokens of an optimizer step; by default the policy that sampled them has made no step yet."""
    old = logprobs.detach() if old is None else old
    given = {"advantages_N": torch.zeros_like(old), "behavior_logprobs_N": old} | fields
    given |= {"logprobs_N": logprobs, "old_logprobs_N": old, "reference_logprobs_N": reference}
    sequences = turns if sequences is None else sequences
    given = {"enumerated_N": torch.zeros(len(turns), dtype=torch.bool)} | given
    return Tokens(turns_N=turns, sequences_N=sequences, **given)


def without_speed(update):
    """The metrics that repeat to the bit."""
    return {k: v for k, v in update.metrics.items() if k != "learn/tokens_per_second"}


def assert_sizes_agree(gradients, model, batches, sizes=(16, 3, 1), **options):
    """Micro-batches of each size make the same gradients; the last metrics of each size."""
    runs, rows = [], []
    for size in sizes:
        gradients.clear()
        learner = make_learner(model, micro_batch_size=size, **options)
        rows.append([without_speed(learner.update(batch)) for batch in batches][-1])
        runs.append(torch.cat(gradients))
    assert (runs[0] != 0).float().mean() > 0.5
    for run in runs[1:]:
        torch.testing.assert_close(run, runs[0], atol=1e-5, rtol=1e-4)
    return rows


def assert_resumes_to_the_bit(make, batch_of, folder, saved=2, in_all=4):
    """A learner that is loaded from a checkpoint does what one that was never saved does."""
    straight, first, second = make(), make(), make()
    for version in range(saved):
        for each in (straight, first):
            each.update(batch_of(version))
    adapter = first.save(folder / f"{saved:06}")
    second.load(folder / f"{saved:06}")
    for version in range(saved, in_all):
        one, other = (each.update(batch_of(version)) for each in (straight, second))
        assert (other.version, other.advantages) == (one.version, one.advantages)
        assert without_speed(other) == without_speed(one)
    assert torch.equal(trained(second), trained(straight))
    return straight, second, adapter


def spy_on_gradients(monkeypatch):
    """A list of the gradients that every optimizer step will be given, before the clip."""
    seen = []
    clip = torch.nn.utils.clip_grad_norm_

    def spy(parameters, limit):
        seen.append(torch.cat([parameter.grad.flatten().clone() for parameter in parameters]))
        return clip(parameters, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    return seen


def make_learner(model, adapter=None, updates=4, seed=0, algorithm=None, ranks=ALONE, **config):
    """A learner of `model`, by default with plain REINFORCE."""
    defaults = {"batch_size": 8, "micro_batch_size": 8, "learning_rate": 1e-2}
    section = LearnerConfig(algorithm=algorithm or {"normalize": "none"}, **defaults | config)
    given = {"updates": updates, "max_tokens": 4, "seed": seed, "adapter": adapter}
    return PolicyLearner(model, section, ranks=ranks, **given)


def count_forwards(module):
    """A list that grows by an entry with each forward of the module from now on."""
    forwards = []
    module.register_forward_pre_hook(lambda *_: forwards.append(1))
    return forwards


def count_compiled(monkeypatch):
    """A list that grows by the graph's number with each compiled run; needs no C++ compiler."""
    runs = []
    compile_function = torch.compile

    def backend(graph, _):
        def run(*arguments):
            runs.append(id(graph))
            return graph(*arguments)

        return run

    def spy(function, **options):
        return compile_function(function, backend=backend, **options)

    monkeypatch.setattr(torch, "compile", spy)
    return runs


def trained(learner):
    """All trained parameters in one row."""
    return torch.cat([p.detach().flatten() for p in learner.optimizer.parameters])


def plain_logprobs(peft_model, tokens):
    """Return the log-probabilities of the sample's tokens, by a plain forward of the model."""
    ids = torch.tensor([tokens.prompt_ids + tokens.token_ids])
    logits = peft_model(input_ids=ids, use_cache=False).logits[0, len(tokens.prompt_ids) - 1 : -1]
    logprobs = torch.log_softmax(logits / tokens.temperature, -1)
    return logprobs.gather(1, torch.tensor(tokens.token_ids)[:, None])[:, 0]


def plain_policy(model):
    """The model with a LoRA of the learner's shape, by transformers and PEFT alone."""
    return attach_lora(tiny_model(vocab=VOCAB), model.lora, seed=0)


# The tiny model's frozen output layer bounds logits by 1; a low temperature permits certainty.
BANDIT_TEMPERATURE = 0.05


def solve_bandit(model, updates, batch_size=64, algorithm=None, **options):
    """A fresh learner plays the bandit from chance until it solves it; the learner, its losses."""
    options = {"learning_rate": 5e-3, "micro_batch_size": batch_size} | options
    learner = make_learner(model, algorithm=algorithm, updates=updates, **options)
    losses, outcomes = play_bandit(learner, model, True, updates, batch_size)
    assert outcomes[0] < 0.3
    assert sum(outcomes[-5:]) / 5 >= 0.9
    return learner, losses


def play_bandit(learner, model, rewarded, updates, batch_size=32):
    """Emit 7 after the prompt 3 and 9 after 5, a group a prompt; losses and mean outcomes."""
    player = plain_policy(model)
    generator = torch.Generator().manual_seed(0)
    wanted_B = torch.tensor([7, 9]).repeat(batch_size // 2)
    prompts_BT = torch.tensor([[1, 3], [1, 5]]).repeat(batch_size // 2, 1)
    losses, outcomes = [], []
    for version in range(updates):
        TrainedLora(player).load(learner.policy.trained.export("player"))
        with torch.no_grad():
            logits_BV = player(input_ids=prompts_BT).logits[:, -1]
            logprobs_BV = torch.log_softmax(logits_BV / BANDIT_TEMPERATURE, -1)
        actions_B = torch.multinomial(logprobs_BV.exp(), 1, generator=generator)[:, 0]
        samples: list[Made] = []
        for prompt, action, wanted, logprobs in zip(
            prompts_BT.tolist(), actions_B.tolist(), wanted_B.tolist(), logprobs_BV, strict=True
        ):
            outcome = float(action == wanted)
            fields = {
                **{"outcome": outcome, "temperature": BANDIT_TEMPERATURE},
                **{
                    "logprobs": [logprobs[action].item()],
                    "moves": tuple(Move([w]) for w in range(VOCAB)),
                },
                **{"game_id": version * batch_size + len(samples)},
                **{"group_id": 2 * version + len(samples) % 2},
            }
            samples.append(make_sample(prompt, [action], outcome if rewarded else 0.0, **fields))

        update = learner.update(make_batch(samples, version))
        if update.metrics["learn/optimizer_steps"]:  # sampled tokens are scored
            assert update.metrics["learn/mismatch_abs_max"] < 1e-4
        losses.append(update.metrics.get("learn/loss"))  # no loss without a step
        outcomes.append(update.metrics["learn/outcome_mean"])
    return losses, outcomes


def packed_batch(batch: Batch) -> PackedBatch:
    """The batch as the loop holds it."""
    groups = (tuple(map(PackedTrajectory.of, group.trajectories)) for group in batch.groups)
    return PackedBatch(batch.version, tuple(groups))
