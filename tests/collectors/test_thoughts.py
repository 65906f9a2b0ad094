"""Thoughts in play: a real model's are ended at their budget, exactly, and stay the seat's own."""

import asyncio
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tests.helpers.builders import asking
from tests.helpers.models import tiny_model, tiny_tokenizer
from tests.helpers.players import Recorder, model_player
from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from unstable.collectors.play import play_game
from unstable.collectors.players.model import ModelPlayer, sample_answer
from unstable.config import ConfigError, GameConfig, InvalidMovesConfig, ThoughtsConfig, parse
from unstable.engines.base import SamplingRequest
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.games.game import Game
from unstable.games.services import prompts_of
from unstable.prompts import STYLES, PromptBuilder
from unstable.records.games import read_game
from unstable.rewards.terms import Rewards
from unstable.types import (
    Completion,
    FinishReason,
    GameResult,
    GameSpec,
    PlayerId,
    SampledTokens,
    SeatSpec,
    Segment,
)

TOKENIZER = tiny_tokenizer()
BUDGET, MOST = 12, 40
CLOSE = TOKENIZER.encode("</think>", add_special_tokens=False)
FREE = GameConfig(events="all", max_turns=8, invalid_moves=InvalidMovesConfig(allowed=99))


def prompts(opens: bool = True, limit: int = 4000, **thoughts: Any) -> PromptBuilder:
    """Build a prompt builder whose chat template begins a thought if `opens`."""
    tokenizer = tiny_tokenizer()
    if opens:
        tokenizer.chat_template += "{% if add_generation_prompt %}<think>{% endif %}"
    config = ThoughtsConfig(**thoughts)
    return PromptBuilder(tokenizer, STYLES["think"], {}, limit, config)


def player(engine: EmbeddedEngine, made: PromptBuilder, **changes: Any) -> ModelPlayer:
    fields: dict[str, Any] = {
        "engine": engine,
        "adapter": None,
        "version": 0,
        "prompts": made,
        "temperature": 0.8,
        "max_tokens": MOST,
        "think_budget": BUDGET,
    }
    return ModelPlayer(**fields | changes)


def play(
    made: PromptBuilder, seed: int = 3, config: GameConfig = FREE, **changes: Any
) -> GameResult:
    seats = tuple(
        SeatSpec(player=PlayerId.policy(0), temperature=0.8, group_id=seat) for seat in range(2)
    )
    spec = GameSpec(game_id=7, purpose="train", env="TicTacToe-v0", seed=11, seats=seats)

    async def main() -> GameResult:
        engine = EmbeddedEngine(tiny_model(), [0], max_requests=4)
        try:
            own = player(engine, made, **changes)
            return await play_game(spec, config, [own, own], run_seed=seed)
        finally:
            await engine.close()

    return asyncio.run(main())


def plain_logprobs(tokens: SampledTokens) -> list[float]:
    """Return each answer token's log-probability by one plain forward over prompt and answer."""
    with torch.no_grad():
        ids = torch.tensor([[*tokens.prompt_ids, *tokens.token_ids]])
        logits = tiny_model()(input_ids=ids).logits[0, len(tokens.prompt_ids) - 1 : -1]
    scores = (logits / tokens.temperature).log_softmax(-1)
    return scores.gather(1, torch.tensor(tokens.token_ids)[:, None])[:, 0].tolist()


def test_thought_is_closed_at_budget_with_exact_logprobs():
    made = prompts(budget=BUDGET, ending="Time is up.")
    ending = TOKENIZER.encode("Time is up.", add_special_tokens=False) + CLOSE
    result = play(made)
    forced = [turn for turn in result.turns if len(turn.answer.sampled.segments) == 3]
    assert len(result.turns) == 8 and len(forced) >= 6
    for turn in forced:
        tokens = turn.answer.sampled
        assert tokens is not None
        begun, inserted, rest = tokens.segments
        assert isinstance(rest, Completion)
        assert inserted == Segment(token_ids=ending, scored=False)
        assert len(begun.token_ids) == BUDGET
        assert len(tokens.token_ids) <= MOST
        assert isinstance(rest, Completion)
        if rest.finish_reason == "length":
            assert len(tokens.token_ids) == MOST
        assert tokens.thought == BUDGET and tokens.has_inserted
        assert tokens.num_scored == BUDGET + len(rest.token_ids)
        expected = plain_logprobs(tokens)
        scored = expected[:BUDGET] + expected[BUDGET + len(ending) :]
        assert tokens.logprobs == pytest.approx(scored, abs=1e-4)
        assert "Time is up.</think>" in turn.answer.text
        assert turn.answer.text.partition("Time is up.")[0] not in turn.answer.action
    assert read_game("a line", game_record(result, [], 0, None)).turns == result.turns
    rewards = Rewards([])
    opened = [sample for each in rewards.trajectories(result) for sample in each.samples]
    assert sum(sample.tokens.thought for sample in opened) >= 6 * BUDGET


def test_closed_thoughts_are_reproducible():
    made = prompts(budget=BUDGET)
    first, again, other = play(made), play(made), play(made, seed=4)
    assert [t.answer.sampled for t in first.turns] == [t.answer.sampled for t in again.turns]
    assert [t.answer.text for t in first.turns] != [t.answer.text for t in other.turns]


class Told:
    """An engine that samples the given texts in turn, each cut at `max_tokens`."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = list(texts), list[SamplingRequest]()

    async def generate(self, request: SamplingRequest) -> Completion:
        self.asked.append(request)
        ids = [*TOKENIZER.encode(self.texts.pop(0), add_special_tokens=False), 0]
        kept = ids[: request.max_tokens]
        reason: FinishReason = "stop" if len(kept) == len(ids) else "length"
        return Completion(
            token_ids=kept, logprobs=[-1.0] * len(kept), finish_reason=reason, adapter=None
        )


@every_row(
    "opens, said, ends",
    (True, "hm</think>[4]", None),  # stops before the budget
    (True, "hm</think>so [4] it is", False),  # closed thought, unfinished answer
    (True, "hm, and hm again, and again", True),
    (False, "no thought at all, none", False),
    (False, "<think>hm, and hm, hm", True),
    (False, "<think>h</think>, [4]", False),
)
async def test_only_unfinished_thoughts_are_closed(opens, said, ends):
    engine: Any = Told(said, "[4]")
    made = prompts(opens, budget=BUDGET)
    request = asking([9, 9], max_tokens=MOST, seed=5)
    segments = await sample_answer(engine, made, request, think_budget=18)
    if ends is None:
        assert len(segments) == len(engine.asked) == 1
        return
    inserted = CLOSE if ends else []
    assert [each.token_ids for each in segments if not each.scored] == [CLOSE][: len(inserted)]
    first, second = engine.asked
    assert second.prompt_ids == [9, 9, *segments[0].token_ids, *inserted]
    assert (first.max_tokens, second.max_tokens) == (18, MOST - 18 - len(inserted))
    assert first.seed == 5 != second.seed


async def test_request_for_fewer_tokens_than_the_budget_keeps_its_limit():
    engine: Any = Told("hm, and hm again")
    request = asking([9], max_tokens=BUDGET - 1)
    (answer,) = await sample_answer(engine, prompts(budget=BUDGET), request, think_budget=BUDGET)
    assert answer.scored and engine.asked == [request]


async def test_thought_ending_must_leave_room_for_action():
    engine: Any = Told("hm, and hm again")
    made = prompts(budget=BUDGET, ending="Enough.")
    with pytest.raises(ConfigError, match="set sampling.max_tokens to more than 27") as raised:
        await sample_answer(engine, made, asking([9], max_tokens=20), think_budget=BUDGET)
    assert "\n" not in str(raised.value)


async def test_seat_sees_only_its_own_earlier_thoughts():
    said = [f"<think>secret {letter}</think>\\boxed{{[{n}]}}" for n, letter in enumerate("abcde")]
    engine = Recorder(*said)
    seats = tuple(SeatSpec(player=PlayerId.policy(s), temperature=0.7, group_id=1) for s in (0, 1))
    spec = GameSpec(game_id=0, purpose="train", env="TicTacToe-v0", seed=11, seats=seats)
    own = model_player(engine, style="think", parser="boxed", prompts=prompts(False, keep=400))
    result = await play_game(spec, FREE.updated({"max_turns": 5}), [own, own], 5)
    assert [turn.answer.action for turn in result.turns] == [f"[{n}]" for n in range(5)]
    for index, request in enumerate(engine.requests):
        shown = TOKENIZER.decode([*request.prompt_ids])
        seen = {letter for letter in "abcde" if f"secret {letter}" in shown}
        assert seen == {a for n, a in enumerate("abcde") if n < index and (n - index) % 2 == 0}
        assert "secret" not in result.turns[index].answer.observation


def test_thoughts_are_dropped_before_a_prompt_is_too_long():
    game = Game(FREE, 11)
    said = [f"<think>{letter * 150}</think>\\boxed{{[1]}}" for letter in "ab"]
    observation = replace(game.observe(), answers=tuple(said))
    bare = len(prompts(False, keep=1).build(observation).ids)
    cut = [prompts(False, bare + room, keep=400).build(observation) for room in (400, 250, 20)]
    shown = [TOKENIZER.decode(each.ids) for each in cut]
    assert [["aaa" in each, "bbb" in each] for each in shown] == [
        [True, True],
        [False, True],
        [False, False],
    ]
    assert [each.cut_tokens for each in cut] == [0, 151, 302]


def test_play_needs_room_after_a_closed_thought():
    sampling = {"max_tokens": 20, "thoughts": {"budget": BUDGET, "ending": "Enough."}}
    config = parse({"sampling": sampling, "games": [{"env": "TicTacToe-v0", "prompt": "think"}]})
    with pytest.raises(ConfigError, match="set sampling.max_tokens to more than 27"):
        prompts_of(config, config.games[0], tiny_tokenizer())


def test_prompts_with_earlier_thoughts_are_reproducible():
    """A replayed env and the recorded answers alone reproduce each prompt, as in an audit."""
    result = play(prompts(budget=BUDGET, keep=60, ending="."))
    game = Game(FREE, result.spec.seed)
    for index, turn in enumerate(result.turns):
        own = [t.answer.text for t in result.turns[:index] if t.seat == turn.seat]
        observation = replace(game.observe(), answers=tuple(own))
        prompt = prompts(budget=BUDGET, keep=60, ending=".").build(observation)
        assert prompt.ids == turn.answer.sampled.prompt_ids
        assert prompt.cut_tokens == turn.answer.sampled.prompt_cut
        game.step(turn.answer.action)
    assert any(turn.answer.sampled.prompt_cut for turn in result.turns)
