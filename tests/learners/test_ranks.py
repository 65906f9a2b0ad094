"""Several ranks act as one: equal gradients, metrics and files for any split of the samples."""

import gc
import math
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.learners import (
    VOCAB,
    count_compiled,
    count_forwards,
    make_batch,
    make_learner,
    make_sample,
    save_teacher,
    spy_on_gradients,
    tokens_of,
    trained,
    with_moves,
    without_speed,
)
from tests.helpers.models import random_adapter, tiny_model
from unstable.config import AdapterConfig, ModelConfig
from unstable.learners.micro_batches import MicroBatches
from unstable.learners.model.token_table import TokenTable
from unstable.learners.ranks import Ranks, join, listen
from unstable.models.adapters import read_adapter

RANKS = 2
PARALLEL = ("ddp", "fsdp")


class Pair:
    """Two joined processes, which run functions concurrently."""

    def __init__(self):
        store = listen("127.0.0.1")
        spawn = multiprocessing.get_context("spawn")
        self.pools = [
            ProcessPoolExecutor(1, spawn, initializer=meet, initargs=(index, store.port))
            for index in range(RANKS)
        ]
        self.store = store

    def run(self, function, *arguments, **options):
        """Run `function(ranks, ...)` on each rank and return the results."""
        calls = [pool.submit(on_rank, function, arguments, options) for pool in self.pools]
        return [call.result(timeout=300) for call in calls]

    def close(self):
        for pool in self.pools:
            for process in pool._processes.values():
                process.kill()
            pool.shutdown()


met: Ranks


def meet(index, port):
    global met
    torch.set_num_threads(1)
    met = join(index, RANKS, torch.distributed.TCPStore("127.0.0.1", port))


def on_rank(function, arguments, options):
    return function(met, *arguments, **options)


@pytest.fixture(scope="module")
def pair():
    both = Pair()
    yield both
    both.close()


def samples_of(version, alike=False):
    """Two seats' groups of different trajectories of one to three turns.

    With `alike` their prompts are equal.
    """
    return [
        make_sample(
            [1, 2, 3, seat, turn, *range(0 if alike else game)],
            [4 + (game + turn + version) % 8] * (1 + (game + turn) % 3),
            reward=float((game * 5 + seat) % 4) - 1.0,
            seat=seat,
            turn=turn,
            game_id=10 * version + game,
            group_id=2 * version + seat,
            version=version,
            logprobs=[-2.5 - 0.1 * turn] * (1 + (game + turn) % 3),
        )
        for game in range(4)
        for seat in range(2)
        for turn in range(1 + game % 3)
    ]


def batch_of(version, alike=False):
    """Make a batch of `samples_of`."""
    return make_batch(samples_of(version, alike), version)


def updates(ranks, model, batches, folder=None, **options):
    """Return all steps' gradients, weights and metrics of updates; save to `folder`, if given."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        gradients = spy_on_gradients(monkeypatch)
        learner = make_learner(model, ranks=ranks, **options)
        metrics = [without_speed(learner.update(batch)) for batch in batches]
    if folder is not None and ranks.index == 0:
        learner.save(folder)
    return gradients, trained(learner), metrics


def whole_updates(ranks, model, batches, folder=None, **options):
    """Run full-weight updates; return weights and moments (rank 0), metrics and the size held.

    Updates resume from the version saved in `folder`, if given.
    """
    model = model.model_copy(update={"adapter": "none"})
    learner = make_learner(model, ranks=ranks, **options)
    if folder is not None:
        learner.load(folder)
    metrics = [without_speed(learner.update(batch)) for batch in batches]
    held = sum(each.numel() for each in learner.optimizer.parameters)
    snapshot = learner.snapshot()

    if ranks.index:
        return None, None, metrics, held
    moments = snapshot.state["optimizer"]["adamw"]["state"]
    flat = torch.cat([each["exp_avg"].flatten() for each in moments.values()])
    return load(snapshot.adapter.weights), flat, metrics, held


def forwards(ranks, model, batches, **options):
    """Count the runs of a layer in updates on the batches."""
    learner = make_learner(model, ranks=ranks, **options)
    runs = count_forwards(learner.policy.layers[0])
    for batch in batches:
        learner.update(batch)
    return len(runs)


def assert_both_as_one(pair, steps, model, batches, whole, metrics, **options):
    """Assert that two ranks have one rank's gradients and metrics, and equal weights."""
    for parallel in PARALLEL:
        given = {"micro_batch_size": 4, "parallel": parallel} | options
        both = pair.run(steps, model, batches, **given)
        for gradients, weights, rows in both:
            torch.testing.assert_close(gradients, whole, atol=1e-5, rtol=1e-4)
            assert torch.equal(weights, both[0][1])
            assert rows == [pytest.approx(expected, rel=1e-3, abs=1e-5) for expected in metrics]


REINFORCE = {"name": "reinforce", "kl_reward": 0.1, "kl_loss": 0.1, "entropy": 0.05}

RLOO = {"name": "rloo", "ratio": "sequence", "kl_reward": 0.1}
GRPO = {"name": "grpo", "kl_loss": 0.1, "kl_estimator": "k3", "aggregation": "sequence"}
PPO = {"name": "ppo", "critic": {"kind": "adapter"}}
DPO = {"name": "dpo", "sft_weight": 0.1, "kl_loss": 0.1, "entropy": 0.05}
KTO = {"name": "kto"}
VRPO = {"name": "vrpo"}


@pytest.mark.parametrize(
    "algorithm", [REINFORCE, RLOO, GRPO, PPO, DPO, KTO, VRPO], ids=lambda chosen: chosen["name"]
)
def test_two_ranks_have_the_gradient_of_one(pair, model, algorithm):
    batches = [batch_of(version, alike=algorithm is DPO) for version in (0, 1)]
    options = {"algorithm": algorithm, "epochs": 2}
    whole, weights, metrics = updates(Ranks(), model, batches, micro_batch_size=8, **options)
    single, *_ = updates(Ranks(), model, batches, micro_batch_size=1, **options)
    assert (torch.cat(whole) != 0).float().mean() > 0.3
    torch.testing.assert_close(single, whole, atol=1e-5, rtol=1e-4)
    assert_both_as_one(pair, updates, model, batches, whole, metrics, **options)


@pytest.mark.parametrize("by", ["adapter", "expert"])
def test_two_ranks_distill_like_one(pair, model, tmp_path, by):
    teacher = {"adapter": save_teacher(tmp_path), "divergence": "jsd"} if by == "adapter" else {}
    options = {"algorithm": {"name": "distill", "teacher": teacher}, "epochs": 2}
    batches = [with_moves(batch_of(version)) for version in (0, 1)]
    whole, _, metrics = updates(Ranks(), model, batches, micro_batch_size=8, **options)
    assert (torch.cat(whole) != 0).float().mean() > 0.3
    assert_both_as_one(pair, updates, model, batches, whole, metrics, **options)


WHOLE = [
    {"name": "reinforce", "kl_reward": 0.1, "kl_loss": 0.1, "reference": {"ema": 0.5}},
    {"name": "ppo", "critic": {"kind": "adapter"}},
]


@pytest.mark.parametrize("algorithm", WHOLE, ids=lambda chosen: chosen["name"])
def test_two_ranks_train_all_weights_like_one(pair, model, algorithm):
    batches = [batch_of(version) for version in (0, 1)]
    options = {"algorithm": algorithm, "epochs": 2, "ema": 0.9, "learning_rate": 1e-3}
    weights, moments, metrics, held = whole_updates(Ranks(), model, batches, **options)
    assert (moments != 0).float().mean() > 0.9
    options |= {"micro_batch_size": 2}
    for parallel in PARALLEL:
        both = pair.run(whole_updates, model, batches, parallel=parallel, **options)
        torch.testing.assert_close(both[0][0], weights, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(both[0][1], moments, atol=1e-5, rtol=1e-3)
        for _, _, rows, own in both:
            assert rows == [pytest.approx(expected, rel=1e-3, abs=1e-5) for expected in metrics]
            assert own == held if parallel == "ddp" else own < 0.6 * held


def test_ranks_shard_weights_saved_by_one_rank(pair, model, tmp_path):
    options = {"algorithm": WHOLE[0], "ema": 0.9, "learning_rate": 1e-3}
    alone = make_learner(model.model_copy(update={"adapter": "none"}), **options)
    alone.update(batch_of(0))
    alone.save(tmp_path / "000001")
    batches = [batch_of(1)]
    weights, *_ = whole_updates(Ranks(), model, batches, tmp_path / "000001", **options)
    options |= {"parallel": "fsdp", "gradient_checkpointing": "on"}
    both = pair.run(whole_updates, model, batches, tmp_path / "000001", **options)
    torch.testing.assert_close(both[0][0], weights, atol=2e-5, rtol=1e-4)


def test_ranks_compute_with_rounded_weights(pair, model):
    cast = model.model_copy(update={"dtype": "bfloat16"})
    options = {"learning_rate": 1e-3}
    batches = [batch_of(0)]
    _, moments, *_ = whole_updates(Ranks(), model, batches, **options)
    _, rounded, *_ = whole_updates(Ranks(), cast, batches, **options)
    for parallel in PARALLEL:
        _, found, *_ = pair.run(whole_updates, cast, batches, parallel=parallel, **options)[0]
        assert 0 < (found - moments).norm() < 2 * (rounded - moments).norm()


def test_ranks_end_an_update_at_the_same_step(pair, model):
    algorithm = {"name": "ppo", "critic": None, "kl_loss": 0.1, "reference": {"every": 1}}
    options = {"algorithm": algorithm, "epochs": 6, "learning_rate": 2e-2, "ema": 0.9}
    batches = [batch_of(0), batch_of(1)]
    *_, metrics = updates(Ranks(), model, batches, **options)
    options["max_kl"] = metrics[0]["learn/kl_old"] / 3
    whole, weights, metrics = updates(Ranks(), model, batches, **options)
    assert 1 < metrics[0]["learn/optimizer_steps"] < 6
    for gradients, own_weights, rows in pair.run(updates, model, batches, **options):
        torch.testing.assert_close(gradients, whole, atol=1e-5, rtol=1e-3)
        torch.testing.assert_close(own_weights, weights, atol=1e-4, rtol=1e-3)
        assert [r["learn/epochs_made"] for r in rows] == [r["learn/epochs_made"] for r in metrics]


def test_shards_are_gathered_again_for_recomputing(pair, model):
    batches = [batch_of(0), batch_of(1)]
    options = {"algorithm": PPO, "epochs": 2}
    whole, *_ = updates(Ranks(), model, batches, **options)
    options |= {"parallel": "fsdp"}
    once = pair.run(forwards, model, batches, **options)
    options |= {"gradient_checkpointing": "on"}
    again = pair.run(forwards, model, batches, **options)
    assert all(more > fewer for more, fewer in zip(again, once, strict=True))
    for gradients, *_ in pair.run(updates, model, batches, **options):
        torch.testing.assert_close(gradients, whole, atol=1e-5, rtol=1e-4)


def supervised_steps(ranks, model, parts, **options):
    """Gradients, weights and losses of a supervised step on each part."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        gradients = spy_on_gradients(monkeypatch)
        learner = make_learner(model, ranks=ranks, **options)
        losses = [learner.imitate(samples).metrics["learn/loss"] for samples in parts]
    return gradients, trained(learner), losses


def test_two_ranks_make_the_same_supervised_step_as_one(pair, model):
    samples = tokens_of(samples_of(0))
    parts = [samples, samples[:1], samples[1:]]  # a single sample cannot be split among ranks
    whole, _, expected = supervised_steps(Ranks(), model, parts)
    assert_both_as_one(pair, supervised_steps, model, parts, whole, expected)


def scores_under(ranks, model, adapter, samples, **options):
    """Logprobs under another adapter, and under the policy after that."""
    learner = make_learner(model, ranks=ranks, **options)
    return learner.logprobs_under(adapter, samples) + learner.logprobs(samples)


def test_sharded_ranks_score_under_another_adapter(pair, model):
    adapter = random_adapter(tiny_model(vocab=VOCAB), "other", seed=3)
    options = {"adapter": adapter, "samples": tokens_of(samples_of(0))}
    expected = scores_under(Ranks(), model, **options)
    for scores in pair.run(scores_under, model, parallel="fsdp", **options):
        assert sum(scores, []) == pytest.approx(sum(expected, []), abs=1e-5)


def compiled_updates(ranks, model, batches, **options):
    """Gradients of every step by compiled layers, and how often a compiled graph was run."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        runs = count_compiled(monkeypatch)
        gradients, *_ = updates(ranks, model, batches, compile=True, **options)
    return gradients, len(runs)


@pytest.mark.slow
@pytest.mark.tables("learners rotating", 3)
def test_compiled_layers_can_be_sharded_and_recomputed(pair, model):
    whole, *_ = updates(Ranks(), model, [batch_of(0)])
    options = {"parallel": "fsdp", "gradient_checkpointing": "on"}
    for gradients, runs in pair.run(compiled_updates, model, [batch_of(0)], **options):
        assert runs > 0
        torch.testing.assert_close(gradients, whole, atol=1e-5, rtol=1e-4)


def test_idle_rank_joins_all_collectives(pair, model):
    # Three trajectories, one per pass: two on one rank; then one, and none for the other rank.
    batches = [make_batch(samples_of(0)[:3], 0), make_batch(samples_of(1)[:1], 1)]
    options = {"algorithm": RLOO | {"kl_reward": 0.0}, "batch_size": 1, "micro_batch_size": 1}
    whole, _, metrics = updates(Ranks(), model, batches, **options)
    assert_both_as_one(pair, updates, model, batches, whole, metrics, **options)


def test_sharded_and_unsharded_ranks_save_equal_files(pair, model, tmp_path):
    batches = [batch_of(0), batch_of(1)]
    losses = {}
    for parallel in PARALLEL:
        both = pair.run(updates, model, batches, tmp_path / parallel, parallel=parallel)
        losses[parallel] = [row["learn/loss"] for row in both[0][2]]
    assert losses["fsdp"] == pytest.approx(losses["ddp"], rel=1e-5)
    files = {name: read_adapter(tmp_path / name, "main@2") for name in losses}
    assert files["ddp"].config == files["fsdp"].config
    alone = make_learner(model)
    for batch in batches:
        alone.update(batch)
    expected = alone.update(batch_of(2)).metrics["learn/loss"]
    for name in losses:  # a single rank continues from either
        learner = make_learner(model)
        learner.load(tmp_path / name)
        assert learner.update(batch_of(2)).metrics["learn/loss"] == pytest.approx(
            expected, rel=1e-4
        )
        torch.testing.assert_close(trained(learner), trained(alone), atol=1e-4, rtol=1e-3)


def base_elements(ranks, model, parallel):
    """Elements of the base model that this rank holds."""
    frozen = make_learner(model, ranks=ranks, parallel=parallel).policy.parameters()
    held = (p.to_local() if isinstance(p, DTensor) else p for p in frozen if not p.requires_grad)
    return sum(parameter.numel() for parameter in held)


def test_a_sharded_rank_holds_a_part_of_the_base(pair, model):
    whole, sharded = (pair.run(base_elements, model, kind) for kind in ("ddp", "fsdp"))
    assert whole[0] == whole[1] == sum(sharded)
    assert max(sharded) < 0.6 * whole[0]


class MostBytes(TorchDispatchMode):
    """The peak memory of this process, without mapped files.

    Measured after every operation, since a thread would miss the peak on a busy machine.
    """

    def __init__(self):
        super().__init__()
        gc.collect()
        self.most = self.start = own_bytes()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, own_bytes())
        return result


def own_bytes() -> int:
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def loading_bytes(ranks, small, model):
    """Measure the peak growth of this process's memory while it loads its shard of the model."""
    make_learner(small, ranks=ranks, parallel="fsdp")  # warms up the libraries' own memory
    with MostBytes() as seen:
        make_learner(model, ranks=ranks, parallel="fsdp")
    return seen.most - seen.start


def test_sharded_rank_never_holds_the_whole_base(pair, model, tmp_path):
    """With another precision each rank has a full copy, which shows that the measurement works."""
    large = tiny_model(hidden=1024, layers=8, heads=8)
    elements = sum(each.numel() for each in large.parameters())
    assert elements > 70_000_000
    large.save_pretrained(tmp_path)
    del large
    asked = ModelConfig(name=str(tmp_path), dtype="float32", adapter=AdapterConfig(rank=1))
    assert max(pair.run(loading_bytes, model, asked)) < 0.75 * 4 * elements
    cast = pair.run(loading_bytes, model, asked.model_copy(update={"dtype": "bfloat16"}))
    assert min(cast) > 0.9 * 2 * elements


@pytest.mark.fault("non-finite optimizer step")
def test_nonfinite_step_on_one_rank_is_skipped_on_both(pair, model):
    spoilt = samples_of(0)
    spoilt[0] = make_sample([9, 9], [4, 4], logprobs=[math.nan, -1.0])
    batches = [make_batch(spoilt, 0), batch_of(1)]
    first, second = pair.run(updates, model, batches, algorithm={"name": "reinforce"})
    for gradients, weights, metrics in (first, second):
        assert metrics[0]["learn/skipped_steps"] == 1
        assert metrics[1]["learn/skipped_steps"] == 0
        assert gradients[0].isnan().any() and gradients[1].isfinite().all()
        assert weights.isfinite().all() and torch.equal(weights, first[1])


LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_every_sample_counts_once_across_ranks(lengths, count, limit, by_tokens):
    samples = tokens_of([make_sample([1] * (1 + a), [2] * b) for a, b in lengths])
    units = [unit for unit, _ in lengths]
    size, max_tokens = limit, 4 * limit if by_tokens else None
    shares = [
        MicroBatches(size, max_tokens, Ranks(index, count))(TokenTable.of(samples), units)
        for index in range(count)
    ]
    assert len({len(share) for share in shares}) == 1
    counted = [one for share in shares for one in share if one.counts]
    assert sorted(i for one in counted for i in one.indices) == list(range(len(samples)))
    for places, _ in counted:
        of = {units[i] for i in places}
        assert sum(unit in of for unit in units) == len(places)  # units are not split
        tokens = sum(samples[i].length for i in places)
        assert len(places) <= size or len(of) == 1
        assert max_tokens is None or tokens <= max_tokens or len(of) == 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any), st.integers(1, 5))
def test_rank_shares_are_contiguous_with_similar_cost(costs, count):
    owners = Ranks(0, count).owners(costs)
    assert owners == sorted(owners) and set(owners) <= set(range(count))
    loads = np.bincount(owners, weights=costs, minlength=count)
    assert abs(loads - sum(costs) / count).max() <= max(costs)
