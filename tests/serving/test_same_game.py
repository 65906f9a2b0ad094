"""A game against the endpoint is the game in process, to the bit: tokens, log-probabilities, texts.

Games are played alone, one at a time: other company in a batch changes the last bits.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save

from tests.helpers.builders import spec
from tests.helpers.models import random_adapter
from tests.helpers.serving import Endpoint, endpoint, served_config
from unstable.collectors.collector import Collector
from unstable.collectors.players.openai import OpenAIPlayer
from unstable.config import RunConfig
from unstable.engines.embedded.engine import start
from unstable.models.adapters import read_adapter, write_adapter
from unstable.models.base import load_model, load_tokenizer
from unstable.types import Adapter, GameResult

GAMES: dict[str, dict[str, Any]] = {
    "compact": {"env": "TicTacToe-v0"},
    "several tries": {"env": "Nim-v0", "prompt": "answer", "invalid_moves": {"allowed": 3}},
    "thoughts": {"env": "KuhnPoker-v0", "prompt": "think"},
}


def configured(game: dict[str, Any], folder: Path, url: str | None = None) -> RunConfig:
    """A game at whose seats a local version may sit, or one behind an endpoint."""
    fixed: list[dict[str, Any]] = [{"kind": "checkpoint", "path": str(folder), "name": "local"}]
    if url is not None:
        far = {"kind": "openai", "name": "far", "model": "main@0", "base_url": url}
        extra = {"return_token_ids": True, "logprobs": True, "top_logprobs": 2}
        fixed = [{**far, "api_key_env": "A_KEY", "seeded": True, "max_tokens": 24, "extra": extra}]
    return served_config(
        games=[game],
        sampling={"max_prompt_tokens": 2048, "max_tokens": 24},
        opponents={"fixed": fixed},
        seed=11,
    )


def mild(adapter: Adapter) -> Adapter:
    """One that changes the model a little, so that it still plays."""
    tensors = {name: tensor * 0.4 for name, tensor in load(adapter.weights).items()}
    return replace(adapter, weights=save(tensors))


async def played(collector: Collector, player: str, env: str, seed: int) -> GameResult:
    made = spec([player] * 2, purpose="eval", env=env, game_id=seed)
    (result,) = [each async for each in collector.play([made])]
    assert isinstance(result, GameResult), result.traceback
    return result


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect each reply as OpenAI's client parses it."""
    monkeypatch.setenv("A_KEY", "any")
    replies, reply = [], OpenAIPlayer._reply

    async def listened(self: OpenAIPlayer, *given: Any) -> Any:
        replies.append(await reply(self, *given))
        return replies[-1]

    monkeypatch.setattr(OpenAIPlayer, "_reply", listened)
    return replies


@pytest.mark.parametrize("name", GAMES)
async def test_endpoint_game_equals_local_game(name: str, tmp_path: Path, heard: list[Any]) -> None:
    config = configured(GAMES[name], tmp_path)
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    write_adapter(mild(random_adapter(model, "main@0", seed=0)), tmp_path)
    env = config.games[0].key
    engine = await start(config, tokenizer, tmp_path)
    here = Collector(config, engine, tokenizer)
    await engine.load(read_adapter(tmp_path, "checkpoint:local"))
    async with endpoint(config, adapters=[read_adapter(tmp_path, "main@0")]) as served:
        there = Collector(configured(GAMES[name], tmp_path, served.url), None, None)
        await there.start()
        turns = 0
        for seed in range(4):
            heard.clear()
            local, far = (
                await played(here, "local", env, seed),
                await played(there, "far", env, seed),
            )
            same(local, far, heard)
            turns += len(local.turns)
            await served.engine.forget_prefixes()  # like a collector before it plays
    await engine.close()
    assert turns >= 4


def same(local: GameResult, far: GameResult, heard: list[Any]) -> None:
    assert far.outcomes == local.outcomes and far.reason == local.reason
    assert len(far.turns) == len(local.turns) == len(heard)
    for turn, other, reply in zip(local.turns, far.turns, heard, strict=True):
        sampled, (choice,) = turn.answer.sampled, reply.choices
        assert other.answer.text == turn.answer.text
        assert other.answer.action == turn.answer.action
        assert reply.prompt_token_ids == sampled.prompt_ids
        assert choice.token_ids == sampled.token_ids
        assert choice.finish_reason == sampled.finish_reason
        rows = choice.logprobs.content
        assert [row.logprob for row in rows] == sampled.logprobs
        (segment,) = sampled.segments
        likeliest = [[value for _, value in at[:2]] for at in segment.top_logprobs]
        assert [[each.logprob for each in row.top_logprobs] for row in rows] == likeliest


async def test_turn_seed_is_sent_only_if_seeded(tmp_path: Path, heard: list[Any]) -> None:
    config = configured(GAMES["compact"], tmp_path)
    async with endpoint(config) as served:
        far = configured(GAMES["compact"], tmp_path, served.url)
        (opponent,) = far.opponents.fixed
        for seeded in (False, True):
            fixed = [opponent.updated({"seeded": seeded})]
            collector = Collector(far.updated({"opponents.fixed": fixed}), None, None)
            await collector.start()
            seeds = [await texts(served, collector, heard) for _ in range(2)]
            assert (seeds[0] == seeds[1]) == seeded


async def texts(served: Endpoint, collector: Collector, heard: list[Any]) -> list[list[float]]:
    """The logprobs of what a game's turns had, of which each seed has its own."""
    heard.clear()
    await served.engine.forget_prefixes()
    await played(collector, "far", collector._config.games[0].key, 1)
    return [[row.logprob for row in reply.choices[0].logprobs.content] for reply in heard]
