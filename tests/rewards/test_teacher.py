"""Teacher scores of a turn: an expert's share of the move, an endpoint's log-probability."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.helpers.builders import answering, asking, completion, game, sampled
from tests.helpers.endpoint import Reply, Server
from tests.helpers.judged import Entry, ended, judged_by, rewards_of
from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import random_adapter, tiny_model, tiny_tokenizer
from tests.helpers.teacher import teacher_at, tiny_engine
from unstable.config import RewardConfig, parse
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.types import GameFailure, GameResult, Move, SampledTokens, Segment

TOKENIZER = tiny_tokenizer()
PROMPT = TOKENIZER.encode("hello", add_special_tokens=False)


def answered(answers: Sequence[SampledTokens]) -> GameResult:
    """A game in which the trained seat has answered so."""
    result = game(turns=2 * len(answers))
    for index, tokens in enumerate(answers):
        text = TOKENIZER.decode(tokens.token_ids, skip_special_tokens=True)
        result.turns[2 * index] = answering(result.turns[2 * index], sampled=tokens, text=text)
    return result


async def judged(entry: Entry, result: GameResult) -> list[float] | GameFailure:
    """Return the term's raw values by turn, or the game's failure."""
    async for (each,) in rewards_of(entry).judge(ended(result)):
        if isinstance(each, GameFailure):
            return each
        (trajectory,) = each[1]
        return [reward.raw for sample in trajectory.samples for reward in sample.rewards.values()]
    raise AssertionError("nothing was judged")


# An expert.


async def test_expert_term_is_share_of_the_chosen_move() -> None:
    moves = (Move([7, 8], 0.75), Move([7, 9, 8], 0.25), Move([9, 8], 0.0))
    made = [[7, 8], [7, 9, 8], [9, 8], [5, 5]]  # the last is not a move
    answers = [replace(sampled(token_ids=a, logprobs=[-1.0] * len(a)), moves=moves) for a in made]
    found = await judged(RewardConfig(term="expert", weight=2.0), answered(answers))
    assert found == [0.75, 0.25, 0.0, 0.0]


def test_expert_term_requires_recorded_moves() -> None:
    rewards = [{"term": "outcome"}, {"term": "expert"}]
    said = line_of(parse, {"buffer": {"rewards": rewards}})
    assert said == (
        "buffer.rewards.1.term = 'expert': needs the expert's probabilities, but "
        "sampling.moves = 'none'; set sampling.moves to expert"
    )
    assert parse({"buffer": {"rewards": rewards}, "sampling": {"moves": "expert"}})


# An endpoint.


@pytest.fixture
async def engine() -> AsyncIterator[EmbeddedEngine]:
    engine = tiny_engine()
    await engine.load(random_adapter(tiny_model(), "teacher", seed=3))
    yield engine
    await engine.close()


def at(url: str, model: str = "teacher", **changes: Any) -> Entry:
    own: dict[str, Any] = {"retries": 0, "args": {"url": url, "model": model}}
    return judged_by("teacher", **own | changes)


def answer(*segments: Any) -> SampledTokens:
    return SampledTokens(prompt_ids=PROMPT, segments=segments, version=0, temperature=1.0)


async def sample(engine: EmbeddedEngine, seed: int) -> SampledTokens:
    return answer(await engine.generate(asking(PROMPT, max_tokens=4, seed=seed)))


async def test_teacher_term_is_log_likelihood_difference(engine: EmbeddedEngine) -> None:
    answers = [await sample(engine, seed) for seed in range(6)]
    # Only sampled tokens count in an answer with inserted tokens.
    inserted = Segment(token_ids=TOKENIZER.encode("why", add_special_tokens=False), scored=False)
    first, last = (answers[i].completions[0] for i in (0, 1))
    answers.append(answer(first, inserted, last))
    expected = []
    for each in answers:
        (scored,) = await engine.score(PROMPT, [each.token_ids], adapter="teacher")
        if len(each.segments) == 3:
            del scored[len(first.token_ids) : -len(last.token_ids)]
        expected.append(sum(scored) - sum(each.logprobs))
    async with teacher_at(engine) as url:
        found = await judged(at(url), answered(answers))
        own = await judged(at(url, "base"), answered(answers[:6]))
    assert found == pytest.approx(expected, abs=1e-4)
    assert min(map(abs, expected)) > 1e-3
    assert own == pytest.approx([0.0] * 6, abs=1e-4)  # the policy as its own teacher


async def test_mean_teacher_term_is_negative_kl(engine: EmbeddedEngine) -> None:
    """Averages over all one-word answers, weighted by the policy's probabilities."""
    words = [[word] for word in range(4, len(TOKENIZER))]
    own, others = [
        np.array(await engine.score(PROMPT, words, adapter=adapter))[:, 0]
        for adapter in (None, "teacher")
    ]
    answers = [
        answer(completion(token_ids=ids, logprobs=[logprob], adapter=None))
        for ids, logprob in zip(words, own.tolist(), strict=True)
    ]
    async with teacher_at(engine) as url:
        found = await judged(at(url), answered(answers))
    chances = np.exp(own)
    assert chances @ np.array(found) == pytest.approx(-chances @ (own - others), abs=1e-5)


def echo(tokens: Sequence[str], logprobs: Sequence[float | None]) -> Reply:
    found = {"tokens": [*tokens], "token_logprobs": [*logprobs]}
    return Reply(body={"choices": [{"text": "", "logprobs": found}]})


FINE = [None, *[-1.0] * 7]


@pytest.mark.parametrize(
    "reply, message",
    [
        (echo("hello[4]", FINE[:6]), "sent 6 log-probabilities for 8 tokens; serve a model with"),
        (echo("hello", FINE[:5]), "sent 5 log-probabilities for 8 tokens; serve a model with the"),
        (echo("hello<4>", FINE), "decodes the answer '[4]' as '<4>': tokenizer mismatch"),
        (echo("hello[4]", [*FINE[:7], None]), "sent invalid log-probabilities: [-1.0, -1.0, None]"),
        (echo("hello[4]", [*FINE[:7], 3.0]), "sent invalid log-probabilities: [-1.0, -1.0, 3.0]"),
        (Reply(body={"choices": [{"text": "hi", "logprobs": None}]}), "sent no log-probabilities"),
        (Reply(body={"choices": []}), "sent no log-probabilities of the prompt (echo with"),
        (Reply(status=404, body={"error": "no such model"}), "/completions returned status 404: "),
    ],
)
async def test_endpoint_errors_fail_the_game(server: Server, reply: Reply, message: str) -> None:
    ids = TOKENIZER.encode("[4]", add_special_tokens=False)
    given = answered([answer(completion(token_ids=ids, logprobs=[-1.0] * 3))])
    server.replies = [echo("hello[4]", [None, *[-2.0] * 7])]
    assert await judged(at(server.url, "m"), given) == [-3.0]
    assert server.bodies[0]["prompt"] == [*PROMPT, *ids] and server.bodies[0]["model"] == "m"
    server.replies = [reply]
    found = await judged(at(server.url, "m"), given)
    assert isinstance(found, GameFailure)
    assert message in found.error and server.url in found.error


@pytest.mark.fault("an endpoint stalls or answers garbage")
async def test_teacher_timeout_fails_the_game(server: Server) -> None:
    server.replies = [Reply(wait_s=1.0, body={})]
    began = asyncio.get_running_loop().time()
    found = await judged(at(server.url, timeout=0.1), answered([sampled()]))
    assert isinstance(found, GameFailure)
    assert "reward term judge: no reply within timeout = 0.1 s" in found.error
    assert asyncio.get_running_loop().time() - began < 0.9


def test_teacher_requires_url_and_model() -> None:
    refused(r"^judges.wise.args.url: missing", parse, {"judges": {"wise": {"kind": "teacher"}}})
