"""Players: what each is given, what it gives back, and that chance is the turn's seed alone."""

import random

import pytest

from tests.helpers.endpoint import Reply, answer, says
from tests.helpers.players import STOP, Recorder, model_player
from unstable.collectors.play import play_game
from unstable.collectors.players.base import Player
from unstable.collectors.players.programs import ExpertPlayer, RandomPlayer
from unstable.collectors.players.python import PythonPlayer
from unstable.config import GameConfig, InvalidMovesConfig
from unstable.games.game import Game
from unstable.prompts import MAX_CHARACTERS, STYLES
from unstable.types import GameSpec, PlayerId, SeatSpec


def spec(*players: str, env: str = "TicTacToe-v0", game_id: int = 0) -> GameSpec:
    seats = tuple(SeatSpec(player=PlayerId.parse(p), temperature=0.7, group_id=1) for p in players)
    return GameSpec(game_id=game_id, purpose="train", env=env, seed=11, seats=seats)


async def test_turn_records_request_and_sampled_tokens():
    engine = Recorder("I say [4]", "[0]", "[4]")
    players = [model_player(engine), model_player(engine, adapter=None, version=None)]
    result = await play_game(spec("main@3", "base"), GameConfig(), players, run_seed=5)
    first, second, third = result.turns
    request = engine.requests[0]
    answer, tokens = first.answer, first.answer.sampled
    assert tokens.prompt_ids == request.prompt_ids
    assert (request.adapter, request.temperature, request.max_tokens) == ("main@3", 0.7, 9)
    assert tokens.token_ids[-1] == STOP and tokens.finish_reason == "stop"
    assert tokens.logprobs == [-i / 10 for i in range(len(tokens.token_ids))]
    assert (tokens.temperature, tokens.prompt_cut) == (0.7, 0)
    assert (answer.text, answer.action) == ("I say [4]", "[4]")
    assert answer.formatted and not first.invalid
    assert (tokens.version, second.answer.sampled.version) == (3, None)
    assert [turn.player.name for turn in (first, second)] == ["main@3", "base"]
    assert [turn.index for turn in result.turns] == [0, 1, 2]
    assert third.invalid and result.forfeit == 0 and result.outcomes == [-1.0, 0.0]
    assert len({request.seed for request in engine.requests}) == 3


async def test_reasoning_is_hidden_from_all_players():
    secret = "SECRET"
    answers = [rf"<think>{secret} [0]</think> {secret} \boxed{{[{c}]}}" for c in (4, 0, 1)]
    engine = Recorder(*answers, f"{secret} without an action", rf"\boxed{{7}} {secret}", "x", "x")
    config = GameConfig(prompt="think", parser="boxed", invalid_moves={"allowed": 1})
    player = model_player(engine, style="think", parser="boxed")
    result = await play_game(spec("main@3", "main@3"), config, [player, player], run_seed=5)
    assert [turn.answer.action for turn in result.turns[:5]] == ["[4]", "[0]", "[1]", "", "[7]"]
    assert [turn.answer.formatted for turn in result.turns[:5]] == [True, True, True, False, True]
    assert all(secret not in turn.answer.observation + turn.answer.action for turn in result.turns)
    assert "invalid" in result.turns[4].answer.observation


async def test_scripted_players_depend_only_on_the_seed():
    players: list[Player] = [RandomPlayer(), ExpertPlayer()]
    names = ("random", "expert")
    plays = []
    for run_seed in (1, 1, 2):
        random.seed(run_seed * 99)
        result = await play_game(spec(*names), GameConfig(), players, run_seed)
        assert result.outcomes[1] >= 0 and result.forfeit is None
        plays.append([turn.answer.action for turn in result.turns])
        assert all(turn.answer.sampled is None for turn in result.turns)
    assert plays[0] == plays[1] != plays[2]


class Bot:
    """Takes the cells in order, and remembers within a game."""

    def __init__(self):
        self.cell = -1

    def __call__(self, observation):
        assert observation.startswith("You are Player ")
        self.cell += 1
        return f"[{self.cell}]"


class AsyncBot:
    async def __call__(self, observation, rng):
        return rng.choice([line for line in observation if line.isdigit()]) and "[8]"


def numb(observation):
    return None


async def test_python_players():
    config = GameConfig(invalid_moves=InvalidMovesConfig(allowed=9))
    players = [PythonPlayer(f"{__name__}:Bot"), PythonPlayer(f"{__name__}:AsyncBot")]
    result = await play_game(spec("bot", "async"), config, players, run_seed=0)
    assert [turn.answer.action for turn in result.turns[:4]] == ["[0]", "[8]", "[1]", "[8]"]
    game = Game(GameConfig(), 0)
    with pytest.raises(TypeError, match="numb returned NoneType"):
        await PythonPlayer(f"{__name__}:numb").act(game.observe(), game, 0)


async def test_long_reply_is_cut_and_counted(server):
    server.replies = [says("I play [4]." + "[8]" * 10**6)]
    said = await answer(server)
    assert len(said.text) == MAX_CHARACTERS
    assert said.cut_characters + MAX_CHARACTERS > 3 * 10**6
    assert said.action == "[8]"


async def test_endpoint_receives_the_same_chat(server, monkeypatch):
    monkeypatch.setenv("A_KEY", "open sesame")
    server.replies = [Reply(503, {}), says("<think>[0]?</think>I play [4].")]
    said = await answer(server, 0.3, max_tokens=33)
    assert (said.action, said.formatted, said.sampled) == ("[4]", True, None)
    assert server.heads == [("/v1/chat/completions", "Bearer open sesame")] * 2
    request, again = server.bodies
    assert request == again
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("m", 0.3, 33)
    assert request["messages"] == STYLES["answer"].messages(said.observation)
