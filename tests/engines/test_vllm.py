"""The vLLM engine, real: SmolLM2 in float32 on vLLM's CPU build.

Bounds, in nats: logprobs are within 0.001 of the learner's for each token and 0.0002 on average;
under a wrong adapter they are more than 0.05 off on average.
"""

import asyncio
import contextlib
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from tests.helpers.builders import asking
from tests.helpers.builders import spec as make_spec
from tests.helpers.cli import ran
from tests.helpers.exports import VERSION, card_code, greedy_text, make_run
from tests.helpers.models import assert_top_logprobs, top_logprobs
from tests.helpers.tables import table
from tests.helpers.vllm import CACHED, LIKELIEST, MODEL, Scorer, Served, needs_vllm
from unstable.collectors.play import play_game
from unstable.collectors.players.constrained import ConstrainedPlayer
from unstable.commands.export import export
from unstable.config import GameConfig, parse
from unstable.engines.kinds import make_engine
from unstable.engines.probe import ProbeAnswer, probe_adapters
from unstable.models.base import load_model, load_tokenizer, model_path
from unstable.models.shape import read_shape
from unstable.prompts import PromptBuilder, load_style
from unstable.types import Adapter, Completion, PlayerId

pytest_plugins = "tests.helpers.smollm2_on_vllm"
pytestmark = [needs_vllm, pytest.mark.asyncio(loop_scope="session")]

SHAPE = read_shape(MODEL)
STOP = 30  # stop token of the test, in addition to the chat's stop tokens
PROMPT = [int(i) for i in np.random.default_rng(0).integers(100, SHAPE.vocabulary, 70)]


def adapter(name: str, seed: int, rank: int = 4) -> Adapter:
    """An adapter that changes answers much, as the start-up probe's do."""
    made = probe_adapters(SHAPE, MODEL.lora.model_copy(update={"rank": rank}))[seed % 2]
    if seed < 2:
        return Adapter(name=name, weights=made.weights, config=made.config)
    tensors = {k: value.roll(seed, dims=1).contiguous() for k, value in load(made.weights).items()}
    return Adapter(name=name, weights=save(tensors), config=made.config)


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer(MODEL)


@pytest.fixture(scope="module")
def engine(smollm2: Served):
    engine: Any = smollm2.engine
    engine._stop_token_ids.append(STOP)
    yield engine
    engine._stop_token_ids.remove(STOP)


@contextlib.asynccontextmanager
async def serving(engine, *adapters: Adapter):
    """The engine with these adapters, which are gone afterwards."""
    for each in adapters:
        await engine.load(each)
    try:
        yield engine
    finally:
        for each in adapters:
            with contextlib.suppress(ValueError):  # the test may have unloaded it
                await engine.unload(each.name)


async def ask(engine, prompt_ids=PROMPT, **request) -> ProbeAnswer:
    completion = await engine.generate(asking(prompt_ids, **{"max_tokens": 4} | request))
    return ProbeAnswer(prompt_ids=list(prompt_ids), completion=completion)


def gaps(scorer: Scorer, answer: ProbeAnswer, scored: Adapter | None, temperature=1.0):
    (expected,) = scorer.score([answer], scored, temperature)
    return np.abs(np.array(expected) - answer.completion.logprobs)


def assert_of(scorer: Scorer, answer: ProbeAnswer, scored: Adapter | None, temperature=1.0) -> None:
    found = gaps(scorer, answer, scored, temperature)
    assert found.max() < 1e-3 and found.mean() < 2e-4


async def test_base_and_adapters_in_one_batch(engine, scorer):
    named: dict[str | None, Any] = {None: None}
    named |= {name: adapter(name, i) for i, name in enumerate("ab")}
    async with serving(engine, named["a"], named["b"]):
        asked = [
            (name, temperature, ask(engine, adapter=name, temperature=temperature, seed=seed))
            for seed, temperature in enumerate([1.0, 0.7, 1.5])
            for name in named
        ]
        answers = await asyncio.gather(*(answer for _, _, answer in asked))
    for (name, temperature, _), answer in zip(asked, answers, strict=True):
        assert_of(scorer, answer, named[name], temperature)
        for other in named.keys() - {name}:
            assert gaps(scorer, answer, named[other], temperature).mean() > 0.05
    assert len({tuple(answer.completion.token_ids) for answer in answers[:3]}) == 3


async def test_scores_equal_learner_scores(engine, scorer):
    """Scores of given tokens, with and without adapters, equal the learner's, even at the stop."""
    named: dict[str | None, Any] = {None: None}
    named |= {name: adapter(name, i) for i, name in enumerate("ab")}

    def of(ids: list[int]) -> Completion:
        return Completion(token_ids=ids, logprobs=[], finish_reason="stop", adapter=None)

    continuations = [[1234, 40, STOP], [1234, 41, 7], [777], [40] * 6]
    async with serving(engine, named["a"], named["b"]):
        found = await asyncio.gather(
            *(engine.score(PROMPT, continuations, adapter=name) for name in named)
        )
    for (_, made), scores in zip(named.items(), found, strict=True):
        answers = [ProbeAnswer(prompt_ids=PROMPT, completion=of(ids)) for ids in continuations]
        for ours, expected in zip(scores, scorer.score(answers, made), strict=True):
            assert ours == pytest.approx(expected, abs=1e-3)
    with pytest.raises(ValueError, match="exceed the engine's"):
        await engine.score(PROMPT, [[1] * 5000], adapter=None)


async def test_greedy_takes_likeliest_token_with_logprob_at_temperature_1(engine, scorer):
    greedy, warm = await asyncio.gather(ask(engine, temperature=0, max_tokens=6), ask(engine))
    for answer in (greedy, warm):
        assert_of(scorer, answer, None)
    other = await ask(engine, temperature=0, max_tokens=6, seed=5)
    assert other.completion.token_ids == greedy.completion.token_ids
    with torch.no_grad():
        ids = torch.tensor([[*PROMPT, *greedy.completion.token_ids]])
        logits = load_model(MODEL)(input_ids=ids).logits[0, len(PROMPT) - 1 : -1]
    assert logits.argmax(-1).tolist() == greedy.completion.token_ids


async def test_top_logprobs_match_sampling_distribution(engine):
    model = load_model(MODEL)
    for temperature, allowed in ((0.7, None), (0.0, None), (1.3, [104, 109])):
        asked = await ask(engine, temperature=temperature, allowed_token_ids=allowed, seed=2)
        expected = top_logprobs(model, PROMPT, asked.completion, temperature, allowed, LIKELIEST)
        assert_top_logprobs(asked.completion.top_logprobs, expected, within=1e-3)


@pytest.mark.parametrize("loses_allowed", [False, True])  # True: vLLM 0.24
async def test_constrained_answers_match_distribution(engine, monkeypatch, loses_allowed):
    monkeypatch.setattr(engine, "_loses_allowed", loses_allowed)
    allowed = [1234, 40, 777]
    requests: list[dict[str, Any]] = [{"temperature": t} for t in (1.0, 0.7, 0)]
    asked = [
        ask(engine, max_tokens=3, seed=seed, allowed_token_ids=allowed, **request)
        for seed, request in enumerate(requests * 3)
    ]
    *answers, free = await asyncio.gather(*asked, ask(engine))
    model = load_model(MODEL)
    for answer, request in zip(answers, requests * 3, strict=True):
        token_ids = answer.completion.token_ids
        assert set(token_ids) <= set(allowed)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*PROMPT, *token_ids]])).logits[0]
        scaled = logits[len(PROMPT) - 1 : -1, allowed] / (request["temperature"] or 1.0)
        places = torch.tensor([[allowed.index(token)] for token in token_ids])
        expected = scaled.log_softmax(-1).gather(1, places)[:, 0]
        np.testing.assert_allclose(answer.completion.logprobs, expected, atol=1e-3)
        if request["temperature"] == 0:
            assert places[:, 0].tolist() == scaled.argmax(-1).tolist()
    alone = await ask(engine)
    assert free.completion.token_ids == alone.completion.token_ids


async def test_constrained_game_has_no_invalid_move(engine):
    player = ConstrainedPlayer(
        engine=engine,
        adapter=None,
        version=None,
        prompts=PromptBuilder(load_tokenizer(MODEL), load_style("answer"), {}, 500),
        temperature=1.0,
        max_tokens=8,
    )
    spec = make_spec(("base", "base"), purpose="eval")
    result = await play_game(spec, GameConfig(), [player, player], run_seed=0)
    assert len(result.turns) >= 5 and not any(turn.invalid for turn in result.turns)
    for turn in result.turns:
        assert turn.answer.sampled.finish_reason == "stop"
        assert f"[{turn.answer.text}]" == turn.answer.action
        assert len(turn.answer.sampled.token_ids) == len(turn.answer.sampled.logprobs)


async def test_seed_determines_answer(engine):
    answers = await asyncio.gather(*(ask(engine, seed=seed, max_tokens=8) for seed in (1, 1, 2)))
    first, again, other = (answer.completion.token_ids for answer in answers)
    assert first == again != other


async def test_answer_ends_at_stop_token_or_max_tokens(engine):
    prompt = [STOP, *PROMPT[:8], STOP]
    answers = await asyncio.gather(*(ask(engine, prompt, seed=s, max_tokens=24) for s in range(8)))
    reasons = set()
    for answer in (answer.completion for answer in answers):
        stops = [index for index, token in enumerate(answer.token_ids) if token in (2, STOP)]
        if answer.finish_reason == "stop":
            assert stops == [len(answer.token_ids) - 1]
        else:
            assert not stops and len(answer.token_ids) == 24
        assert len(answer.logprobs) == len(answer.token_ids)
        reasons.add(answer.finish_reason)
    assert reasons == {"stop", "length"}


async def test_version_loads_while_requests_run(engine, scorer):
    old, new = adapter("main@1", 0), adapter("main@2", 1)
    async with serving(engine, old):
        running = asyncio.create_task(ask(engine, adapter="main@1", max_tokens=16))
        while engine.stats()["running"] == 0:
            await asyncio.sleep(0)
        async with serving(engine, new):
            assert not running.done()
            assert_of(scorer, await ask(engine, adapter="main@2"), new)
            assert_of(scorer, await running, old)


async def test_evicted_adapter_is_reloaded_correctly(engine, scorer):
    # The zero adapter is resident too, and the last adapter exceeds the capacity.
    adapters = [adapter(f"main@{i}", i) for i in range(CACHED + 2)]
    before = engine.stats()
    async with serving(engine, *adapters):
        for each in [*adapters, adapters[0]]:
            assert_of(scorer, await ask(engine, adapter=each.name), each)
    moved = {name: value - before[name] for name, value in engine.stats().items()}
    assert moved["adapter_requests"] == len(adapters) + 1
    assert moved["adapter_hits"] == 0, "each was evicted before its request"


async def test_versions_share_no_prefix(engine, scorer):
    old, new = adapter("main@1", 0), adapter("main@2", 1)

    async def cached(**request) -> tuple[float, ProbeAnswer]:
        before = engine.stats()["cached_prompt_tokens"]
        answer = await ask(engine, max_tokens=2, **request)
        return engine.stats()["cached_prompt_tokens"] - before, answer

    async with serving(engine, old):
        await cached(adapter="main@1")
        assert (await cached(adapter="main@1"))[0] >= 32
        async with serving(engine, new):
            shared, warm = await cached(adapter="main@2")
            assert shared == 0
            await engine.forget_prefixes()
            shared, cold = await cached(adapter="main@2")
            assert shared == 0
    assert warm.completion.token_ids == cold.completion.token_ids
    np.testing.assert_allclose(warm.completion.logprobs, cold.completion.logprobs, atol=1e-5)
    same_name = Adapter(name="main@1", weights=new.weights, config=new.config)
    async with serving(engine, same_name):
        shared, answer = await cached(adapter="main@1")
        assert shared == 0
        assert_of(scorer, answer, new)


async def test_removed_adapter_is_rejected(engine, scorer):
    kept = adapter("kept", 1)
    async with serving(engine, adapter("gone", 0), kept):
        folder = engine._versions.find("gone").folder
        request = asyncio.create_task(ask(engine, adapter="gone"))
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="in use"):
            await engine.unload("gone")
        await request
        await engine.unload("gone")
        assert not folder.exists()
        with pytest.raises(ValueError, match="'gone' not found"):
            await ask(engine, adapter="gone")
        assert_of(scorer, await ask(engine, adapter="kept"), kept)


async def test_invalid_adapter_does_not_affect_engine(engine, scorer):
    good = adapter("good", 0)
    tensors = load(good.weights)
    key = next(key for key in tensors if key.endswith("lora_A.weight"))
    astray = {name.replace("q_proj", "w_proj"): value for name, value in tensors.items()}
    cases = [
        (Adapter(name="wide", weights=save(tensors | {key: torch.zeros(4, 9)}), config=good.config),
         "does not fit the base"),
        (Adapter(name="astray", weights=save(astray), config=good.config), "not an inner linear"),
        (adapter("large", 0, rank=32), "vLLM rejected adapter .*rank 32"),
    ]  # fmt: skip
    async with serving(engine, good):
        for bad, message in cases:
            with pytest.raises(ValueError, match=message):
                await engine.load(bad)
            with pytest.raises(ValueError, match="not found"):
                await ask(engine, adapter=bad.name)
        with pytest.raises(ValueError, match="'good' already exists"):
            await engine.load(good)
        assert_of(scorer, await ask(engine, adapter="good"), good)


@pytest.mark.parametrize(
    "prompt_ids, request_, message",
    [
        ([], {}, "empty prompt"),
        ([SHAPE.vocabulary], {}, "outside the vocabulary"),
        ([1], {"temperature": -0.1}, "temperature = -0.1"),
        ([1], {"temperature": 0.001}, "must be 0 .greedy. or >= 0.01"),
        ([1], {"max_tokens": 0}, "max_tokens = 0"),
        ([1], {"allowed_token_ids": []}, "0 allowed_token_ids"),
        ([1], {"allowed_token_ids": [SHAPE.vocabulary]}, "outside the vocabulary"),
        ([1] * 510, {"max_tokens": 5}, "exceed the engine's limit of 512"),
        ([1], {"adapter": "main@9"}, "'main@9' not found"),
    ],
)
async def test_invalid_request_does_not_affect_engine(engine, prompt_ids, request_, message):
    with pytest.raises(ValueError, match=message):
        await ask(engine, prompt_ids, **request_)
    assert len((await ask(engine, [1] * 3, max_tokens=2)).completion.token_ids) == 2


async def test_cancelled_request_frees_its_slot(engine):
    async with serving(engine, adapter("main@1", 0)):
        running = [asyncio.create_task(ask(engine, max_tokens=400, adapter="main@1", seed=seed))
                   for seed in range(9)]  # fmt: skip
        while engine.stats()["running"] < 8:
            await asyncio.sleep(0)
        assert engine.stats()["waiting"] == 1
        for request in running:
            request.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert engine.stats()["running"] == 0
        assert len((await ask(engine, max_tokens=3)).completion.token_ids) == 3


async def test_request_aborted_by_vllm_fails(engine):
    """A request fails if vLLM aborts it, as `close` does with requests in flight."""
    request = asyncio.create_task(ask(engine, max_tokens=400))
    while engine.stats()["running"] == 0:
        await asyncio.sleep(0)
    await engine._llm.abort(engine._in_flight.copy())
    with pytest.raises(RuntimeError, match="aborted a request: finish reason abort"):
        await request


@pytest.mark.tables("vllm", 0)
async def test_failed_start_names_reason_and_log(tiny_folder, tmp_path):
    """The error of a failed child process names its log and gives a reason that the log holds."""
    folder, log = tmp_path / "broken", tmp_path / "engine.log"
    shutil.copytree(tiny_folder, folder)
    (folder / "model.safetensors").write_bytes(b"no weights")
    config = parse(
        {
            "model": {"name": str(folder), "dtype": "float32"},
            "actors": {"engine": "vllm", "games_in_flight": 2, "max_loras": 1, "max_cpu_loras": 1},
        }
    )
    with pytest.raises(RuntimeError, match="^vLLM failed to start: ") as raised:
        await make_engine(config, log)
    reason, _, file = str(raised.value).removeprefix("vLLM failed to start: ").rpartition("; see ")
    assert "initialization failed" not in reason
    assert Path(file) == log and reason in log.read_text()


@pytest.mark.parametrize("merged", table("vllm", [False, True], core=[]))
async def test_code_of_model_card_answers_like_embedded_engine(merged, tmp_path):
    """Greedy, in float32, in a process of its own; without the minutes of vLLM's compilation."""
    config = parse(
        {
            "model": MODEL.model_dump(),
            "games": [{"env": "TicTacToe-v0", "prompt": "answer"}],
            "actors": {"games_in_flight": 2},
            "sampling": {"max_tokens": 8},
            "tracking": {"dashboard": "off"},
        }
    )
    policy = adapter(PlayerId.policy(VERSION).name, 0)
    folder = await asyncio.to_thread(make_run, tmp_path / "run", config, policy)
    out = export(folder.root, None, merged=merged)
    code = card_code(out, 1, model_path(MODEL)).replace("LLM(", "LLM(enforce_eager=True, model=")
    code = code.replace("model=base, tokenizer", "model=base, max_model_len=1024, tokenizer")
    (tmp_path / "card.py").write_text(code)
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    done = ran([sys.executable, "card.py"], tmp_path, **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = await asyncio.to_thread(greedy_text, config, policy, out)
    # vLLM logs before it, and after it when the process exits.
    assert expected and f"\n{expected.rstrip()}\n" in f"\n{done.stdout}\n"
