"""The programs under examples/drivers, each run against an actor of this process."""

import asyncio
import json
import os
import random
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from examples.drivers.programs import ClaudeCode, Codex
from examples.drivers.verifiers_twin import LEGAL, KuhnChats
from tests.helpers.collector import Scripted
from tests.helpers.driven import DRIVEN, GAME, Door, all_of, driven_actor, kuhn_specs
from tests.helpers.loop import lines, played
from tests.helpers.models import tiny_tokenizer
from unstable.config import ModelConfig, parse
from unstable.drivers import TOKEN, OpenGame, driving
from unstable.engines.base import SamplingRequest
from unstable.games.game import Game
from unstable.loop.train import train
from unstable.models.base import load_tokenizer
from unstable.prompts import ChatTemplate
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.runtime.local import LocalActor
from unstable.solving.best_response import assess
from unstable.solving.tree import grow
from unstable.types import Completion, GameResult

EXAMPLES = Path(__file__).parents[2] / "examples" / "drivers"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="node for examples/drivers/kuhn.mjs is not installed")
async def test_javascript_driver_plays_kuhn(tmp_path):
    """Games of one seed are dealt alike, and the program ends with the run, without an error."""
    async with driven_actor(tmp_path, games=[{**GAME, "env": "driver"}]) as actor:
        door = Door(actor)
        assert NODE is not None and door.token
        program = await asyncio.create_subprocess_exec(
            *(NODE, str(EXAMPLES / "kuhn.mjs"), door.url, "4"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, TOKEN: door.token},
        )
        first = await all_of(actor, kuhn_specs(24))
        again = await all_of(actor, kuhn_specs(24))
    said, errors = await asyncio.wait_for(program.communicate(), 30)
    assert (program.returncode, said, errors) == (0, b"48 games played\n", b"")
    dealt: list[dict[int, tuple[int, str]]] = []
    for results in (first, again):
        dealt.append({})
        for result in results:
            assert isinstance(result, GameResult), result.error
            assert {abs(payoff) for payoff in result.payoffs} <= {
                1,
                2,
            } or result.forfeit is not None
            turn = result.turns[0]
            dealt[-1][result.spec.seed] = (turn.seat, turn.answer.observation)
    assert dealt[0] == dealt[1]
    assert len(set(dealt[0].values())) > 3, "different first cards and seats"


CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


class Caller(Scripted):
    """Engine that calls the tool first in one of two games, and then answers its output."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = tiny_tokenizer()

    async def generate(self, request: SamplingRequest) -> Completion:
        last = self.tokenizer.decode([*request.prompt_ids]).rpartition("<|user|>")[2]
        said = "5" if "tool_response" in last else CALL if request.seed % 2 else "100000"
        ids = [*self.tokenizer.encode(said, add_special_tokens=False), 0]
        assert len(ids) <= request.max_tokens
        return Completion(
            token_ids=ids,
            logprobs=[-1.0] * len(ids),
            finish_reason="stop",
            adapter=request.adapter,
        )


async def test_tool_output_is_excluded_from_training(begin):
    """Recorded games, samples and loss cover only the agent's text, with the openai client."""
    context = begin(
        games=[
            {
                "env": "driver:examples.drivers.calculator:Calculator",
                **{"name": "Calculator", "payoff_scale": 1},
            }
        ],
        opponents={"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": []},
        sampling={"max_tokens": 256, "max_prompt_tokens": 2048},
        actors={"games_in_flight": 4},
        eval={"every": 0},
        loop={"mode": "sync", "steps": 1},
    )
    actor = LocalActor(context.config, context.folder, Caller(), tiny_tokenizer())
    await actor.collector.start()
    context.actors[:] = [actor]
    assert await train(context) == "all updates made"
    turns = {
        (game["game"], turn["index"]): turn
        for game in played(context.folder)
        for turn in game["turns"]
    }
    called = {place: turn for place, turn in turns.items() if CALL in turn["text"]}
    assert 0 < len(called) < len(turns)
    tokenizer = tiny_tokenizer()
    for turn in called.values():
        call, output, answer = turn["sampled"]["segments"]
        assert tokenizer.decode(call["token_ids"]) == f"{CALL}<|end|>"
        assert tokenizer.decode(output["token_ids"]) == (
            "<|user|><tool_response>\n5\n</tool_response><|end|><|assistant|>"
        )
        assert tokenizer.decode(answer["token_ids"]) == "5<|end|>" and "logprobs" not in output
    samples = lines(context.folder.samples(1))
    assert any((sample["game"], sample["turn"]) in called for sample in samples)
    trained = 0
    for sample in samples:
        assert sample["sampled"] == turns[sample["game"], sample["turn"]]["sampled"]
        scored = [each for each in sample["sampled"]["segments"] if "logprobs" in each]
        assert sample["completion_length"] == sum(len(each["token_ids"]) for each in scored)
        trained += sample["completion_length"]
    *_, row = read_rows(context.folder.metrics)
    assert row["learn/tokens_trained"] == trained


class Whole(Scripted):
    """Engine that completes its answers."""

    async def generate(self, request: SamplingRequest) -> Completion:
        return replace(await super().generate(request), finish_reason="stop")


@pytest.mark.parametrize(("name", "program"), [("claude", ClaudeCode), ("codex", Codex)])
async def test_agent_program_plays_seats(tmp_path, name, program):
    """Each seat takes one turn, and what the program prints decides the game."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} for examples/drivers/programs.py is not installed")
    config = parse(DRIVEN | {"sampling": {"max_prompt_tokens": 4096, "max_tokens": 8}})
    actor = LocalActor(config, RunFolder(tmp_path), Whole(), tiny_tokenizer())
    await actor.collector.start()
    door = Door(actor)
    playing = asyncio.create_task(driving(program().play, door.url, token=door.token))
    results = await all_of(actor, kuhn_specs(2))
    await actor.close()
    assert await playing == 2
    for result in results:
        assert isinstance(result, GameResult), result.error
        total = sum(random.Random(result.spec.seed).choices(range(1, 100), k=2))
        first, second = [abs(int(turn.answer.text.strip("[]")) - total) for turn in result.turns]
        won = (first < second) - (first > second)
        assert result.payoffs == [won, -won]
        assert [turn.seat for turn in result.turns] == [0, 1]


def chats(folder: Path) -> str:
    """Write a file like examples/drivers/verifiers_chats.py does, with other words."""
    rows = []
    for card, (moves, legal) in product("JQK", LEGAL.items()):
        seat = len(moves) % 2
        told = [f"Player {index} chose {move}" for index, move in enumerate(moves)]
        say = [f"So far: {', '.join(told[:end]) or 'nothing'}." for end in range(len(moves) + 1)]
        system = f"Seat {seat}.\nThe rules of the game.\nYour card: {card}.\nOne move, please."
        messages = [{"role": "system", "content": system}]
        for end in range(seat, len(moves) + 1, 2):
            messages.append({"role": "user", "content": f"{say[end]} Choose: {' or '.join(legal)}"})
            if end < len(moves):
                messages[-1]["content"] = f"{say[end]} Choose: {' or '.join(LEGAL[moves[:end]])}"
                messages.append({"role": "assistant", "content": moves[end]})
        rows.append({"messages": messages, "legal": legal})
    (folder / "chats.json").write_text(json.dumps(rows))
    return str(folder / "chats.json")


async def test_twin_env_prompts_equal_the_programs_prompts(tmp_path):
    """Exact measurements on the twin thus hold for the policy in the program's game."""
    file = chats(tmp_path)
    own = {"env": "examples.drivers.verifiers_twin:KuhnChats", "args": {"chats": file}}
    game = parse({"games": [{**own, "name": "Kuhn", "parser": "brackets"}]}).games[0]
    alone = {"actors": {"games_in_flight": 1, "engine": "embedded"}}

    async def play(opened: OpenGame) -> dict[str, Any]:
        chats_of: list[list[dict[str, Any]]] = [[], []]
        held = Game(game, opened.seed)
        while not held.done:
            seat = held.observe().seat
            chat = [*held.observe().chat]
            assert chat[: len(chats_of[seat])] == chats_of[seat], "one conversation per seat"
            move = (await opened.ask(seat, chat))["content"]
            legal = held.legal_moves()
            held.step(legal[len(move) % 2])  # the model writes no brackets
            answered = {"role": "assistant", "content": legal[len(move) % 2]}
            chats_of[seat] = [*chat, answered]
        return {"payoffs": held.payoffs}

    async with driven_actor(tmp_path / "driven", **alone) as actor:
        door = Door(actor)
        program = asyncio.create_task(driving(play, door.url, token=door.token))
        results = await all_of(actor, kuhn_specs(12))
    await program
    template = ChatTemplate(load_tokenizer(ModelConfig(name="tiny_cards")), {})
    known = {tuple(template.encode(chat)) for chat in KuhnChats(file).chats.values()}
    for result in results:
        assert isinstance(result, GameResult), result.error
        for turn in result.turns:
            assert turn.answer.sampled is not None
            assert tuple(turn.answer.sampled.prompt_ids) in known
    assert len(known) == 12


def test_twin_env_has_kuhn_poker_equilibrium(tmp_path):
    """Kuhn poker's equilibrium is not exploitable in the twin and has the known value of -1/18."""
    own = {"env": "examples.drivers.verifiers_twin:KuhnChats", "args": {"chats": chats(tmp_path)}}
    tree = grow(parse({"games": [{**own, "parser": "exact"}]}).games[0])
    first = {"J": (1 / 3, 0.0), "Q": (0.0, 2 / 3), "K": (1.0, 1.0)}  # probabilities of bet and call
    second = {"J": (1 / 3, 0.0), "Q": (0.0, 1 / 3), "K": (1.0, 1.0)}
    policy = {}
    for node in tree.decisions:
        assert node.observation is not None
        card = node.observation.chat[0]["content"].partition("card: ")[2][0]
        calls = "[call]" in node.actions
        chance = (first, second)[node.seat][card][calls]
        active = "[call]" if calls else "[bet]"
        policy[node.key] = {each: chance if each == active else 1 - chance for each in node.actions}
    found = assess(tree, policy, forfeits=True)
    assert len(tree.decisions) == 12
    assert found.exploitability == pytest.approx(0, abs=1e-9)
    assert found.values == pytest.approx((-1 / 18, 1 / 18))
