"""The embedded engine: exact, reproducible, and never wrong about what it has cached."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from tests.helpers.embedded import (
    BOTH,
    FAMILIES,
    RANK,
    RULES,
    VOCAB,
    adapters_of,
    ask,
    assert_each_is_exact,
    assert_exact,
    make_model,
    play_turns,
    serving,
    with_peft,
)
from tests.helpers.models import assert_top_logprobs, random_adapter, top_logprobs
from tests.helpers.rows import every_row
from unstable.config import ModelConfig
from unstable.engines.base import Engine, EngineDiedError
from unstable.engines.embedded.attention import ForwardPlan, SlotCache, _together
from unstable.engines.embedded.sampling import restrict, sample, uniforms
from unstable.engines.embedded.slots import Copy, SlotPlacement, SlotTable
from unstable.models.base import load_model
from unstable.types import Adapter


@pytest.mark.parametrize("family", FAMILIES)
async def test_logprobs_equal_plain_forward(family: str) -> None:
    model, adapters = make_model(family), adapters_of(family)
    plain: dict[str | None, torch.nn.Module] = {None: make_model(family)}
    plain |= {a.name: with_peft(make_model(family), a) for a in adapters}
    async with serving(model, adapters, max_requests=5) as engine:
        asked = await play_turns(engine, list(plain), turns=4, vocab=VOCAB, rules=RULES)
        long = RULES * 8  # longer than a query block and the initial cache
        asked.append((long, "main@1", 1.0, await ask(engine, long, adapter="main@1")))
        stats = engine.stats()
    assert_each_is_exact(asked, plain, "main@2")

    assert stats["cached_prompt_tokens"] > 0.3 * stats["prompt_tokens"]
    assert stats["requests"] == len(asked)
    assert stats["sampled_tokens"] == sum(len(answer.token_ids) for *_, answer in asked)


async def test_concurrent_nested_prefixes_are_exact() -> None:
    model = make_model()
    prompts = [[1], [*RULES, 1], [*RULES, 2, 3], [*RULES, 2, 4, 5], [*RULES, 2, 4, 6], [*RULES, 2]]
    async with serving(model) as engine:
        answers = await asyncio.gather(*[ask(engine, prompt) for prompt in prompts])
        cached = engine.stats()["cached_prompt_tokens"]
    assert cached == 4 * len(RULES) + 0 + 1 + 2 + 0
    plain = make_model()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert_exact(plain, prompt, answer)


async def test_smollm2_with_two_adapters_is_exact() -> None:
    model = load_model(ModelConfig(name="smollm2-135m", dtype="float32"))
    adapters = [
        _scaled(random_adapter(model, f"main@{i}", seed=i, rank=RANK), 0.2) for i in range(2)
    ]
    names = [None, "main@0", "main@1"]
    prompts = [[*range(200, 230), 17 + i] for i in range(3)]
    rounds = []
    async with serving(model, adapters) as engine:
        for temperature in (0.8, 1.0):
            requests = [
                ask(engine, prompt, adapter=name, temperature=temperature, max_tokens=5)
                for prompt, name in zip(prompts, names, strict=True)
            ]
            rounds.append((temperature, await asyncio.gather(*requests)))
        assert engine.stats()["cached_prompt_tokens"] == 3 * 30
    for index, prompt in enumerate(prompts):
        plain = with_peft(model, adapters[index - 1]) if index else model
        for temperature, answers in rounds:
            assert_exact(plain, prompt, answers[index], temperature)


def _scaled(adapter: Adapter, factor: float) -> Adapter:
    tensors = {key: value * factor for key, value in load(adapter.weights).items()}
    return Adapter(name=adapter.name, weights=save(tensors), config=adapter.config)


@pytest.mark.parametrize("family", BOTH)
async def test_answer_is_independent_of_concurrent_requests(family: str) -> None:
    model, adapters = make_model(family), adapters_of(family)
    names = [None, "main@0", "main@1", "main@2"]
    async with serving(model, adapters, max_requests=7) as engine:
        crowd = await play_turns(engine, names, turns=3, vocab=VOCAB, rules=RULES)
    for index in range(0, len(crowd), 5):
        prompt_ids, name, temperature, answer = crowd[index]
        asks = {"max_tokens": len(answer.token_ids), "seed": 100 * (index // 3) + index % 3}
        async with serving(model, adapters, max_requests=1) as engine:
            alone = await ask(engine, prompt_ids, adapter=name, temperature=temperature, **asks)

        assert alone.token_ids == answer.token_ids
        np.testing.assert_allclose(alone.logprobs, answer.logprobs, atol=1e-4)


@pytest.mark.parametrize("family", BOTH)
async def test_only_seed_changes_answer(family: str) -> None:
    async with serving(make_model(family)) as engine:
        answers = [await ask(engine, RULES, seed=seed, max_tokens=8) for seed in (1, 1, 2)]
    assert answers[0].token_ids == answers[1].token_ids != answers[2].token_ids


@pytest.mark.parametrize("family", BOTH)
async def test_greedy_takes_likeliest_token_with_logprob_at_temperature_1(family):
    model = make_model(family)
    async with serving(model) as engine:
        answer = await ask(engine, RULES, temperature=0)
    assert_exact(model, RULES, answer)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*RULES, *answer.token_ids]])).logits[0]

    assert logits[len(RULES) - 1 : -1].argmax(-1).tolist() == answer.token_ids


@pytest.mark.parametrize("family", BOTH)
async def test_top_logprobs_match_sampling_distribution(family):
    model = make_model(family)
    async with serving(make_model(family), top_logprobs=3) as engine:
        for temperature, allowed in ((0.7, None), (0.0, None), (1.3, [4, 9])):
            answer = await ask(engine, RULES, temperature=temperature, allowed_token_ids=allowed)
            expected = top_logprobs(model, RULES, answer, temperature, allowed, 3)
            assert_top_logprobs(answer.top_logprobs, expected, within=1e-4)
    async with serving(make_model(family)) as engine:
        assert (await ask(engine, RULES)).top_logprobs is None


@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=20),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0.3, 1.0, 2.0]),
)
def test_sampling_inverts_the_distribution_function(logits, uniform, temperature):
    scaled = np.array(logits, dtype=np.float32).astype(np.float64) / temperature
    logprobs = scaled - np.logaddexp.reduce(scaled)
    cumulated = np.exp(logprobs).cumsum()
    tokens, sampled = sample(
        torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([uniform])
    )
    (token,) = tokens
    below = cumulated[token - 1] if token else 0.0
    assert below - 1e-6 <= uniform <= cumulated[token] + 1e-6
    assert sampled[0] == pytest.approx(logprobs[token], abs=2e-5)


def test_sampling_never_takes_an_impossible_token() -> None:
    logits = torch.full((2, 50), -torch.inf)
    logits[:, 20:30] = torch.linspace(0, 1, 10)
    # Numbers just below 1 round to 1 in fp32.
    tokens, _ = sample(logits, torch.ones(2), torch.tensor([0.0, 1.0]))
    assert tokens == [20, 29]


@given(st.data(), st.lists(st.floats(-30, 30), min_size=2, max_size=20))
def test_restricted_row_samples_among_allowed_tokens_only(data, logits):
    ids = st.lists(st.integers(0, len(logits) - 1), min_size=1, unique=True)
    allowed = sorted(data.draw(ids))
    uniform = torch.tensor([data.draw(st.floats(0, 1, exclude_max=True))])
    rows = torch.tensor([logits, logits, logits])
    restrict(rows, [None, allowed, None])
    assert torch.equal(rows[0], torch.tensor(logits)) and torch.equal(rows[0], rows[2])
    for temperature in (torch.tensor([0.7]), torch.tensor([0.0])):
        token, logprob = sample(rows[1:2], temperature, uniform)
        expected = (torch.tensor([logits])[0, allowed] / (temperature or 1.0)).log_softmax(-1)
        assert logprob[0] == pytest.approx(float(expected[allowed.index(token[0])]), abs=2e-5)
    assert float(expected.max()) == pytest.approx(logprob[0], abs=2e-5)  # at temperature 0


def test_uniform_numbers_are_splitmix64_of_seed_and_position() -> None:
    """Chances equal the published SplitMix64 stream of the seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    published += [4593380528125082431, 16408922859458223821]
    places = np.array([3, 0, 1, 2, 4])

    chances = uniforms(np.full(5, 1234567, dtype=np.uint64), places)
    assert chances.tolist() == [(published[place] >> 11) / 2**53 for place in places]


@pytest.mark.parametrize("family", BOTH)
async def test_restricted_and_free_requests_share_a_batch(family: str) -> None:
    model, allowed = make_model(family), [3, 50, 7]
    prompts = [[*RULES, i] for i in range(6)]
    async with serving(model) as engine:
        free = await asyncio.gather(*[ask(engine, prompt) for prompt in prompts])
    async with serving(model) as engine:
        answers = await asyncio.gather(
            *[
                ask(engine, prompt, allowed_token_ids=allowed if i % 2 else None)
                for i, prompt in enumerate(prompts)
            ]
        )
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if i % 2 == 0:
            assert answer.token_ids == free[i].token_ids
            continue
        assert set(answer.token_ids) <= set(allowed)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *answer.token_ids]])).logits[0]
        expected = logits[len(prompt) - 1 : -1, allowed].log_softmax(-1)
        chosen = [allowed.index(token) for token in answer.token_ids]
        likely = expected[range(len(chosen)), chosen].tolist()
        assert answer.logprobs == pytest.approx(likely, abs=1e-4)

    assert len({token for answer in answers[1::2] for token in answer.token_ids}) > 1


@pytest.mark.parametrize("family", BOTH)
async def test_answer_ends_at_stop_token_or_max_tokens(family: str) -> None:
    model = make_model(family)
    async with serving(model) as engine:
        whole = await ask(engine, RULES, max_tokens=20, seed=3)
    assert (whole.finish_reason, len(whole.token_ids)) == ("length", 20)
    stop = whole.token_ids[7]
    first = whole.token_ids.index(stop)
    async with serving(model, stop=[stop]) as engine:
        stopped = await ask(engine, RULES, max_tokens=20, seed=3)
        assert engine.stats()["sampled_tokens"] == first + 1
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == whole.token_ids[: first + 1]


async def test_prefixes_are_computed_once() -> None:
    prompts = [[*RULES, 1 + i, 2 + i] for i in range(4)]
    async with serving(make_model(), adapters_of("llama")) as engine:
        await asyncio.gather(*[ask(engine, p, max_tokens=1) for p in prompts])
        assert engine.stats()["cached_prompt_tokens"] == 3 * len(RULES)
        await ask(engine, prompts[0], max_tokens=4)  # cached except for the last id
        assert engine.stats()["cached_prompt_tokens"] == 4 * len(RULES) + 1
        await ask(engine, prompts[0], adapter="main@0", max_tokens=1)  # shares no prefix
        assert engine.stats()["cached_prompt_tokens"] == 4 * len(RULES) + 1


async def test_next_turn_reuses_cached_answer() -> None:
    async with serving(make_model(), max_requests=2) as engine:
        answer = await ask(engine, RULES, max_tokens=5)
        await ask(engine, [*RULES, *answer.token_ids, 9], max_tokens=1)
        # The model never computed the last sampled token.
        assert engine.stats()["cached_prompt_tokens"] == len(RULES) + 4


async def test_least_recently_used_prefix_is_evicted() -> None:
    first, second, third = ([i] * 10 for i in (1, 2, 3))
    async with serving(make_model(), max_requests=2) as engine:
        for prompt in (first, second, first, third):  # the last one evicts the second
            await ask(engine, prompt, max_tokens=1)
        before = engine.stats()["cached_prompt_tokens"]
        await ask(engine, first, max_tokens=1)
        assert engine.stats()["cached_prompt_tokens"] == before + 9
        await ask(engine, second, max_tokens=1)
        assert engine.stats()["cached_prompt_tokens"] == before + 9


@pytest.mark.parametrize("family", BOTH)
async def test_removed_adapter_leaves_no_cached_prefixes(family: str) -> None:
    model, (first, second, _) = make_model(family), adapters_of(family)
    other = Adapter(name=first.name, weights=second.weights, config=second.config)
    async with serving(model, [first]) as engine:
        await ask(engine, RULES, adapter=first.name)
        await engine.unload(first.name)
        with pytest.raises(ValueError, match="not found"):
            await ask(engine, RULES, adapter=first.name)
        await engine.load(other)
        answer = await ask(engine, RULES, adapter=first.name)
        assert engine.stats()["cached_prompt_tokens"] == 0
    assert_exact(with_peft(make_model(family), second), RULES, answer)


async def test_forgotten_prefixes_are_recomputed() -> None:
    async with serving(make_model()) as engine:
        first = await ask(engine, RULES, max_tokens=2)
        await engine.forget_prefixes()
        assert await ask(engine, RULES, max_tokens=2) == first
        assert engine.stats()["cached_prompt_tokens"] == 0
        request = asyncio.create_task(ask(engine, RULES))
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="in flight"):
            await engine.forget_prefixes()
        await request


@pytest.mark.parametrize("family", BOTH)
async def test_adapter_in_use_cannot_be_unloaded(family: str) -> None:
    async with serving(make_model(family), adapters_of(family)) as engine:
        request = asyncio.create_task(ask(engine, RULES, adapter="main@0"))
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="in use"):
            await engine.unload("main@0")
        await request
        await engine.unload("main@0")


@pytest.mark.parametrize("family", BOTH)
async def test_requests_beyond_slots_wait_in_order(family: str) -> None:
    order = []

    async def numbered(engine: Engine, number: int) -> None:
        await ask(engine, [1 + number] * 3, max_tokens=2)
        order.append(number)

    async with serving(make_model(family), max_requests=2) as engine:
        await asyncio.gather(*[numbered(engine, number) for number in range(7)])
    assert order == list(range(7))


@pytest.mark.parametrize("steps", [0, 40])
@pytest.mark.parametrize("family", BOTH)
async def test_cancelled_request_frees_its_slot(steps: int, family: str) -> None:
    async with serving(make_model(family), max_requests=1) as engine:
        running = asyncio.create_task(ask(engine, RULES, max_tokens=900))
        waiting = asyncio.create_task(ask(engine, RULES, max_tokens=900))
        for _ in range(1 + steps):
            await asyncio.sleep(0)
        waiting.cancel()
        running.cancel()
        assert len((await ask(engine, RULES[:9], max_tokens=3)).token_ids) == 3
        assert running.cancelled() and waiting.cancelled()
        assert (engine.stats()["running"], engine.stats()["waiting"]) == (0, 0)
        assert engine.stats()["sampled_tokens"] < 100


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.fault("the embedded engine fails in a step (non-finite logits)")
async def test_failed_forward_fails_all_current_and_later_requests(family: str) -> None:
    model, (adapter, *_) = make_model(family), adapters_of(family)
    async with serving(model, [_scaled(adapter, float("nan"))]) as engine:
        asked = (ask(engine, RULES, adapter=name) for name in (None, adapter.name))
        answers = await asyncio.gather(*asked, return_exceptions=True)

        assert [type(answer) for answer in answers] == [EngineDiedError] * 2
        with pytest.raises(EngineDiedError, match="FloatingPointError: NaN or infinity"):
            await ask(engine, RULES)


@pytest.mark.parametrize("family", BOTH)
async def test_close_fails_requests_in_flight_and_restores_model(family: str) -> None:
    model = make_model(family)
    ids = torch.tensor([RULES])
    before = model(input_ids=ids).logits
    async with serving(model, adapters_of(family)) as engine:
        request = asyncio.create_task(ask(engine, RULES, adapter="main@0", max_tokens=500))
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="closed"):
        await request
    with pytest.raises(RuntimeError, match="closed"):
        await ask(engine, RULES)
    torch.testing.assert_close(model(input_ids=ids).logits, before, atol=0, rtol=0)


@every_row(
    "prompt_ids, request_, message",
    ([], {}, "empty prompt"),
    ([1, VOCAB], {}, "outside the vocabulary"),
    ([1, -1], {}, "outside the vocabulary"),
    ([1], {"temperature": -0.1}, "temperature = -0.1"),
    ([1], {"temperature": float("nan")}, "temperature = nan"),
    ([1], {"max_tokens": 0}, "max_tokens = 0"),
    ([1], {"allowed_token_ids": []}, "0 allowed_token_ids; give 1 to 1024"),
    ([1], {"allowed_token_ids": [1] * 1025}, "1025 allowed_token_ids"),
    ([1], {"allowed_token_ids": [1, VOCAB]}, "allowed_token_ids: id outside the vocabulary"),
    ([1], {"allowed_token_ids": [-1]}, "allowed_token_ids: id outside the vocabulary"),
    ([1] * 60, {"max_tokens": 5}, "exceed the engine's limit of 64"),
    ([1], {"adapter": "main@9"}, "'main@9' not found"),
)
async def test_invalid_request_is_rejected_without_side_effects(prompt_ids, request_, message):
    async with serving(make_model(), max_length=64) as engine:
        with pytest.raises(ValueError, match=message):
            await ask(engine, prompt_ids, **request_)
        assert len((await ask(engine, [1] * 58, max_tokens=6)).token_ids) == 6


async def test_invalid_adapter_is_rejected_without_side_effects() -> None:
    adapter = adapters_of("llama")[0]
    tensors = load(adapter.weights)
    key = next(key for key in tensors if key.endswith("lora_A.weight"))
    wide = tensors | {key: torch.zeros(RANK, 999)}
    astray = {name.replace("q_proj", "w_proj"): value for name, value in tensors.items()}
    async with serving(make_model(), [adapter]) as engine:
        cases: list[tuple[dict[str, Tensor], dict[str, Any], str]] = [
            (tensors, {}, "already exists"),
            (wide, {}, "does not fit the base: .*999"),
            (astray, {}, "w_proj, not an inner linear layer"),
            ({}, {}, "contains no LoRA weights"),
        ]
        for weights, config, message in cases:
            name = adapter.name if "already" in message else "other"
            bad = Adapter(name=name, weights=save(weights), config=adapter.config | config)
            with pytest.raises(ValueError, match=message):
                await engine.load(bad)
        await engine.load(Adapter(name="other", weights=adapter.weights, config=adapter.config))


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=6)
arrivals = st.lists(st.tuples(prompts, st.sampled_from([None, "a"])), max_size=6)


@settings(max_examples=300)
@given(st.integers(1, 6), st.lists(arrivals, max_size=5), st.randoms(use_true_random=False))
def test_slots_contain_the_positions_of_their_requests(num_slots, rounds, random):
    """The copies and writes of forwards, in their order, on a memory that holds marked ids."""
    table = SlotTable(num_slots, 32)
    memory = np.full((num_slots, 32), "", dtype=object)
    busy: dict[int, str | None] = {}
    for requests in rounds:
        placements = _place_all(table, busy, requests)
        _copy(memory, [p.before for p in placements])
        for slot, adapter in busy.items():
            for position in range(table.computed[slot], table.length[slot]):
                memory[slot, position] = _mark(table, slot, adapter, position)
        _copy(memory, [p.after for p in placements])
        for slot, adapter in busy.items():
            table.computed[slot] = table.length[slot]
            for position in range(table.length[slot]):
                assert memory[slot, position] == _mark(table, slot, adapter, position)
        for slot in list(busy):
            if random.random() < 0.6:
                table.release(slot)
                del busy[slot]
            else:
                table.append(np.array([slot]), np.array([random.randrange(2)]))


def _place_all(
    table: SlotTable, busy: dict[int, str | None], requests: list[tuple[list[int], str | None]]
) -> list[SlotPlacement]:
    placements = []
    for ids, adapter in requests:
        placement = table.place(np.array(ids), adapter)
        if placement is None:
            assert len(busy) == len(table.length)
            continue
        assert placement.slot not in busy
        assert placement.start < len(ids)
        busy[placement.slot] = adapter
        placements.append(placement)
    for placement in placements:
        table.computed[placement.slot] = placement.start
    return placements


def _mark(table: SlotTable, slot: int, adapter: str | None, position: int) -> str:
    """Represent keys and values, which depend on the adapter and all ids up to the position."""
    return f"{adapter} {table.ids[slot, : position + 1]}"


def _copy(memory: np.ndarray, copies: Sequence[Copy | None]) -> None:
    for source, target, start, stop in filter(None, copies):
        memory[target, start:stop] = memory[source, start:stop]


@given(
    st.lists(st.tuples(prompts, st.sampled_from([None, "a"]), st.booleans()), max_size=30),
    st.integers(1, 5),
)
def test_longest_cached_prefix_is_found(requests, num_slots):
    table = SlotTable(num_slots, 32)
    held: dict[int, tuple[list[int], str | None]] = {}
    busy: list[int] = []
    for ids, adapter, ends in requests:
        known = [content for content, under in held.values() if under == adapter]
        placement = table.place(np.array(ids), adapter)
        if placement is None:
            continue
        assert placement.start == max((_shared(ids, content) for content in known), default=0)
        busy.append(placement.slot)
        table.computed[placement.slot] = len(ids)
        held[placement.slot] = ids, adapter
        if ends:
            table.release(busy.pop(0))


def _shared(ids: list[int], content: list[int]) -> int:
    """Return the length of the prefix that `ids`, without the last id, shares with `content`."""
    pairs = zip(ids[:-1], content, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids) - 1, len(content)))


spans = st.sampled_from([(0, 2), (1, 3), (0, 3)])


@given(st.lists(st.tuples(st.integers(0, 4), spans), max_size=5), st.permutations(range(5)))
def test_batched_copies_equal_sequential_copies(sources, targets):
    """Each slot is written once at most, as a step places requests."""
    copies = [
        Copy(source, target, start, stop)
        for (source, (start, stop)), target in zip(sources, targets, strict=False)
        if source != target
    ]
    expected = np.arange(15).reshape(5, 3)
    actual = expected.copy()
    _copy(expected, copies)
    for from_, to, start, stop in _together(copies):
        actual[to, start:stop] = actual[from_, start:stop]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 60)), min_size=1, max_size=9),
    st.sampled_from([None, 1, 5, 40]),
    st.sampled_from([None, 0.7]),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=50, deadline=None)
def test_slot_attention_equals_causal_softmax_attention(
    dtype: torch.dtype,
    segments: list[tuple[int, int]],
    window: int | None,
    cap: float | None,
    has_sinks: bool,
    seed: int,
) -> None:
    """Segments of any start and length, alone or together; each slot is filled step by step."""
    shape, random = (2, 3, 8), torch.Generator().manual_seed(seed)
    slots = np.random.default_rng(seed).permutation(60)[: len(segments)]
    starts, sizes = (np.array(column) for column in zip(*segments, strict=True))
    cache = SlotCache(60, 256, {0: window} if window else {})
    sinks = torch.randn(shape[0] * shape[1], generator=random) if has_sinks else None
    extras = {"cap": cap, "sinks": sinks}
    filled = [  # in an earlier step, so that the cache grows
        _attended(cache, slots, np.zeros_like(starts), starts + 1, shape, random, dtype, extras),
        _attended(cache, slots, starts + 1, starts + 1 + sizes, shape, random, dtype, extras),
    ]
    for row in range(len(segments)):
        keys, values = (torch.cat([step[row][part] for step in filled]) for part in (1, 2))
        queries, _, _, actual = filled[1][row]
        for i, query in enumerate(queries.float()):
            stop = int(starts[row]) + 2 + i
            seen = slice(max(0, stop - window) if window else 0, stop)
            scores = torch.einsum("kgd,mkd->kgm", query, keys[seen].float()) * 0.4
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            if sinks is not None:
                scores = torch.cat((scores, sinks.view(*shape[:2], 1)), -1)
            weights = scores.softmax(-1)[..., : len(keys[seen])]
            expected = torch.einsum("kgm,mkd->kgd", weights, values[seen].float())
            tolerance = 1e-5 if dtype == torch.float32 else 0.05
            torch.testing.assert_close(actual[i].float(), expected, atol=tolerance, rtol=0)


def _attended(
    cache: SlotCache,
    slots: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    shape: tuple[int, int, int],
    random: torch.Generator,
    dtype: torch.dtype,
    extras: dict[str, Any],
) -> list[tuple[Tensor, ...]]:
    """Return the queries, keys, values and attention outputs of each segment of a step."""
    heads, groups, size = shape
    step = ForwardPlan(slots, starts, stops)
    cache.reserve(step.length)
    count = int((stops - starts).sum())
    query = torch.randn(1, heads * groups, count, size, generator=random).to(dtype)
    key, value = torch.randn(2, 1, heads, count, size, generator=random).to(dtype)
    mixed = cache.attend(0, step, query, key, value, 0.4, **extras)[0].unflatten(1, (heads, groups))
    queries = query[0].transpose(0, 1).unflatten(1, (heads, groups))
    rows = (queries, key[0].transpose(0, 1), value[0].transpose(0, 1), mixed)
    sizes = (stops - starts).tolist()
    return list(zip(*(tensor.split(sizes) for tensor in rows), strict=True))
