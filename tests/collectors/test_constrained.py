"""Constrained play: legal moves alone, each with its chance; and evaluation alone."""

import asyncio
import math
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel

from tests.helpers.collector import Scripted, collector, played, specs
from tests.helpers.constrained import serving, sharp_model
from tests.helpers.games import LISTED
from tests.helpers.mistakes import refused
from tests.helpers.models import random_adapter, tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.collectors.collector import Collector
from unstable.collectors.players.constrained import ConstrainedPlayer
from unstable.commands.prepare import check_games
from unstable.config import ConfigError, GameConfig, parse
from unstable.engines.base import Engine
from unstable.games.check import check_constrained
from unstable.games.game import Game
from unstable.prompts import PromptBuilder, load_style, write_answer
from unstable.types import Answer, GameResult, PlayerId

NIM = GameConfig(env="Nim-v0", args={"piles": [12, 2]})  # [0 1], [0 10], [1 1], ...: three forks


def builder(style: str = "answer", parser: str = "auto") -> PromptBuilder:
    put = load_style(style).of_game(GameConfig(parser=parser))
    return PromptBuilder(tiny_tokenizer(), put, {}, 4096)


def player(
    engine: Engine, game: GameConfig, temperature: float = 1.0, max_tokens: int = 16
) -> ConstrainedPlayer:
    return ConstrainedPlayer(
        engine=engine,
        adapter=None,
        version=None,
        prompts=builder(parser=game.parser),
        temperature=temperature,
        max_tokens=max_tokens,
    )


def chances(game: Game, model: PreTrainedModel, temperature: float) -> dict[str, float]:
    """Each legal move's chance by hand: every answer put through whole, renormalised at each fork.

    Temperature 0 means 1, as it does for logprobs.
    """
    prompts = builder()
    prompt_ids = prompts.build(game.observe()).ids
    answers = {one: prompts.encode_answer(write_answer(prompts, one)) for one in game.legal_moves()}
    found = {}
    for move, token_ids in answers.items():
        logits = model(input_ids=torch.tensor([prompt_ids + token_ids])).logits[0].double()
        product = 1.0
        for place, token_id in enumerate(token_ids):
            here = token_ids[:place]
            allowed = {other[place] for other in answers.values() if other[:place] == here}
            weights = (logits[len(prompt_ids) + place - 1] / (temperature or 1.0)).exp()
            product *= float(weights[token_id] / weights[sorted(allowed)].sum())
        found[move] = product
    assert sum(found.values()) == pytest.approx(1.0)
    return found


async def ask(engine: Engine, temperature: float, seeds: Sequence[int]) -> list[Answer]:
    """Answers to the first position of Nim."""
    game = Game(NIM, 0)
    asked = player(engine, NIM, temperature)
    observation = game.observe()
    return await asyncio.gather(*(asked.act(observation, game, seed) for seed in seeds))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
async def test_move_probability_is_product_of_renormalized_tokens(temperature: float) -> None:
    model, count = sharp_model(), 1500
    async with serving(model) as engine:
        answers = await ask(engine, temperature, range(count))
    expected = chances(Game(NIM, 0), model, temperature)
    assert max(expected.values()) > 2 / len(expected), "probabilities too even for this test"
    for answer in answers:
        assert sum(answer.sampled.logprobs) == pytest.approx(
            math.log(expected[answer.action]), abs=1e-4
        )
    seen = Counter(answer.action for answer in answers)
    for move, chance in expected.items():
        spread = math.sqrt(count * chance * (1 - chance))
        assert abs(seen[move] - count * chance) < 4.5 * spread + 1, move


async def test_greedy_takes_the_likeliest_token_at_each_fork() -> None:
    model = sharp_model()
    async with serving(model) as engine:
        first, other = await ask(engine, 0, [1, 2])
    assert first.action == other.action
    expected = chances(Game(NIM, 0), model, 0)
    assert sum(first.sampled.logprobs) == pytest.approx(math.log(expected[first.action]), abs=1e-4)
    # A fork's likeliest token has the largest sum of chances, since those below it add up to 1.
    for place in range(len(first.action)):
        sums: dict[str, float] = defaultdict(float)
        for move, chance in expected.items():
            if move.startswith(first.action[:place]):
                sums[move[: place + 1]] += chance
        assert max(sums, key=sums.__getitem__) == first.action[: place + 1]


async def test_constrained_answer_has_tokens_like_a_sampled_one() -> None:
    async with serving(sharp_model()) as engine:
        (answer,) = await ask(engine, 1.0, [3])
        (again,) = await ask(engine, 1.0, [3])
    sampled = answer.sampled
    assert sampled.token_ids == again.sampled.token_ids
    assert f"[{answer.text}]" == answer.action and answer.formatted
    assert sampled.token_ids == builder().encode_answer(answer.text)
    assert len(sampled.logprobs) == len(sampled.token_ids)
    assert (sampled.finish_reason, sampled.version) == ("stop", None)


async def test_engine_is_queried_only_where_legal_answers_diverge() -> None:
    config = GameConfig()
    game = Game(config, 0)
    async with serving(sharp_model()) as engine:
        asked = player(engine, config)
        for cell in range(8):
            before = engine.stats()["sampled_tokens"]
            answer = await asked.act(game.observe(), game, seed=cell)
            assert engine.stats()["sampled_tokens"] == before + 1
            logprobs = answer.sampled.logprobs
            assert len(logprobs) == 2 and logprobs[1] == 0
            assert not game.step(answer.action).invalid
            if game.done:
                return
        before = engine.stats()["sampled_tokens"]
        answer = await asked.act(game.observe(), game, seed=8)
        assert engine.stats()["sampled_tokens"] == before
        assert answer.sampled.logprobs == [0.0] * 2


async def play(constrained: bool, purpose: str, **changes: object) -> list[GameResult]:
    model = sharp_model()
    async with serving(model) as engine:
        ours: Collector = collector(engine, eval={"constrained": constrained}, **changes)
        await engine.load(random_adapter(model, "main@0", seed=0))
        ours.announce(PlayerId.policy(0))
        games = specs(16, ("main@0", "base"), "TicTacToe-v0", purpose)
        results = await played(ours.play(games))
    games_played = [result for result in results if isinstance(result, GameResult)]
    assert len(games_played) == len(results)
    return sorted(games_played, key=lambda result: result.spec.game_id)


async def test_a_constrained_model_never_makes_an_invalid_move() -> None:
    results = await play(True, "eval")
    assert all(not turn.invalid for result in results for turn in result.turns)
    turns = [turn for result in results for turn in result.turns]
    assert all(turn.answer.formatted and turn.answer.sampled.token_ids for turn in turns)
    assert {turn.answer.sampled.version for turn in turns} == {0, None}
    assert all(len(result.turns) >= 5 and result.forfeit is None for result in results)
    assert len({tuple(turn.answer.action for turn in result.turns) for result in results}) > 1
    unconstrained = await play(False, "eval")
    assert all(result.forfeit is not None for result in unconstrained)


@every_row("refresh", "game", "turn")
async def test_training_is_never_constrained(refresh: str) -> None:
    actors = {"games_in_flight": 4, "policy_refresh": refresh}
    first, second = [await play(on, "train", actors=actors) for on in (True, False)]
    assert [[turn.answer.sampled.token_ids for turn in game.turns] for game in first] == [
        [turn.answer.sampled.token_ids for turn in game.turns] for game in second
    ]
    assert any(turn.invalid for game in first for turn in game.turns)


@every_row("parser", "brackets", "boxed", "raw")
async def test_answers_match_the_parser_format(parser: str) -> None:
    config = GameConfig(parser=parser)
    game = Game(config, 0)
    async with serving(sharp_model()) as engine:
        answer = await player(engine, config).act(game.observe(), game, seed=0)
    assert answer.formatted and answer.action in game.legal_moves()
    assert answer.text == (rf"\boxed{{{answer.action}}}" if parser == "boxed" else answer.action)


@every_row("env, seats", *LISTED)
def test_every_listed_move_can_be_parsed(env: str, seats: int) -> None:
    config = GameConfig(env=env, seats=seats)
    game, prompts, chance = Game(config, 0), builder(), random.Random(0)
    for _ in range(12):
        if game.done:
            return
        game.observe()
        moves = game.legal_moves()
        for move in moves:
            assert prompts.style.read_action(write_answer(prompts, move)) == (move, True)
        game.step(chance.choice(moves))


def peace(env: object) -> list[str]:
    return ["peace"]


async def test_moves_too_long_or_unparsable_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"max_tokens = 3: the legal move '\[0 1\]' takes 4 tok"):
        game = Game(NIM, 0)
        await player(Scripted(), NIM, max_tokens=3).act(game.observe(), game, 0)
    config = GameConfig(legal_moves=f"{__name__}:peace")
    with pytest.raises(ConfigError, match="games.parser = 'plain': reads 'peace' neither"):
        game = Game(config, 0)
        await player(Scripted(), config).act(game.observe(), game, 0)


@every_row(
    "game, words",
    ({"env": "Chopsticks-v0"}, "set games.0.legal_moves to module:function"),
    ({"prompt": "think", "parser": "boxed"}, "set games.0.prompt to answer, or eval.constr"),
)
def test_unconstrainable_games_are_rejected(game: dict, words: str) -> None:
    data = {"games": [game], "opponents": {"fixed": [], "draw": {"fixed": 0}}}
    for settings, rejected in (
        ({"constrained": True, "opponents": ["base"]}, True),
        ({"constrained": False, "opponents": ["base"]}, False),
        ({"constrained": True, "every": 0}, False),
    ):
        config = parse(data | {"eval": settings})
        if not rejected:
            check_games(config)
            continue
        with pytest.raises(ConfigError, match="^eval.constrained = true in ") as raised:
            check_games(config)
        assert words in str(raised.value) and "\n" not in str(raised.value)


def test_constrainable_games_pass_and_sampling_lacks_the_option() -> None:
    for env in ("TicTacToe-v0", "Nim-v0", "Othello-v0"):
        check_constrained(GameConfig(env=env))
    refused("unknown key 'constrained'", parse, {"sampling": {"constrained": True}})
