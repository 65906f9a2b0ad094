"""Test datasets: prompts as in play, answers as play parses them, and their sources."""

import json
import random
import re
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AddedToken

from tests.helpers.datasets import recorded_game
from tests.helpers.learners import token_sample
from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import tiny_model, tiny_tokenizer
from tests.helpers.players import STOP, Recorder, model_player
from tests.helpers.rows import every_row
from unstable.config import ConfigError, GameConfig, ModelConfig
from unstable.datasets.examples import Example, read_examples, split_by_prompt, write_examples
from unstable.datasets.sources import expert_examples, jsonl_examples, recorded_examples
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.games.game import Game
from unstable.models.base import load_tokenizer
from unstable.prompts import (
    STYLES,
    PromptBuilder,
    Tags,
    load_style,
    observation_text,
    write_answer,
)

TICTACTOE = GameConfig()
KUHN = GameConfig(env="unstable.games.catalog.kuhn:KuhnPoker", name="Kuhn")
THINK = {"prompt": "think", "parser": "boxed"}


def builder(style: str = "answer", parser: str = "auto", tokenizer=None) -> PromptBuilder:
    put = load_style(style).of_game(GameConfig(parser=parser))
    return PromptBuilder(tokenizer or tiny_tokenizer(), put, {}, 4096)


def opening_builder(parser: str) -> PromptBuilder:
    """Return a builder for a chat template that opens the reasoning itself."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    return builder("think", parser, tokenizer)


async def test_prompt_ids_equal_those_in_play():
    taught = {e.prompt: e for e in expert_examples(TICTACTOE, builder(), number=400, seed=0)}
    engine = EmbeddedEngine(tiny_model(), {STOP}, max_requests=2)
    player = model_player(engine, adapter=None, version=None)
    compared = 0
    for seed in range(20):
        rng, game = random.Random(seed), Game(TICTACTOE, seed)
        while not game.done:
            observation = game.observe()
            answer = await player.act(observation, game, seed)
            if example := taught.get(answer.observation):
                assert answer.sampled.prompt_ids == example.tokens.prompt_ids
                assert observation.seat == example.seat
                compared += 1
            game.step(rng.choice(game.legal_moves()))
    await engine.close()
    assert compared > 20


async def test_taught_answer_parses_to_expert_move():
    for example in expert_examples(TICTACTOE, builder(), number=60, seed=3):
        player = model_player(Recorder(example.answer), parser="auto")
        game = replayed(example)
        answer = await player.act(game.observe(), game, 0)
        assert answer.sampled.prompt_ids == example.tokens.prompt_ids
        assert (answer.sampled.token_ids, answer.text) == (example.tokens.token_ids, example.answer)
        assert answer.formatted and answer.action in game.expert_moves()
        assert set(game.expert_moves()) < set(game.legal_moves())  # some legal moves are worse


def replayed(example: Example) -> Game:
    """The TicTacToe position that a prompt describes."""
    game = Game(TICTACTOE, 0)
    board = example.prompt.partition("Current Board:")[2].partition("Available Moves:")[0]
    cells = [cell for cell in re.split(r"[\s|+-]+", board) if cell]
    places = {mark: [i for i, cell in enumerate(cells) if cell == mark] for mark in "OX"}
    for pair in zip_longest(places["O"], places["X"]):
        for cell in (cell for cell in pair if cell is not None):
            game.step(f"[{cell}]")
    assert game.seat == example.seat
    assert observation_text(game.observe()) in example.prompt
    return game


def test_real_template_ends_answer_with_same_ids():
    tokenizer = load_tokenizer(ModelConfig())
    prompts = builder("think", "boxed", tokenizer)
    assert prompts.template.stop_token_id == tokenizer.eos_token_id
    game = GameConfig(env="Nim-v0", **THINK)
    for example in expert_examples(game, prompts, number=6, seed=0, rationale=True):
        messages = [
            {"role": "system", "content": STYLES["think"].system},
            {"role": "user", "content": example.prompt},
            {"role": "assistant", "content": example.answer},
        ]
        whole = tokenizer.apply_chat_template(messages, return_dict=False)
        taught = example.tokens.prompt_ids + example.tokens.token_ids
        assert whole[: len(taught)] == taught


def test_template_without_stop_token_uses_tokenizers():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    assert builder(tokenizer=tokenizer).template.stop_token_id == tokenizer.eos_token_id


@every_row("game", TICTACTOE, KUHN, GameConfig(env="ConnectFour-v0"))
def test_examples_are_distinct_balanced_and_seeded(game):
    examples = expert_examples(game, builder(), number=81, seed=5)
    assert len(examples) == len({tuple(e.tokens.prompt_ids) for e in examples}) == 81
    seats = [example.seat for example in examples]
    assert abs(seats.count(0) - seats.count(1)) == 1
    assert {example.env for example in examples} == {game.key}
    assert examples == expert_examples(game, builder(), number=81, seed=5)
    others = expert_examples(game, builder(), number=81, seed=6)
    assert {e.prompt for e in examples} != {e.prompt for e in others}


@pytest.mark.parametrize(("pile", "number", "by_seat"), [(4, 50, (1, 2)), (4, 2, (1, 1))])
def test_too_few_positions_are_all_returned_and_logged(pile, number, by_seat, caplog):
    game = GameConfig(env="Nim-v0", args={"piles": [pile]}, max_turns=2)
    examples = expert_examples(game, builder(), number=number, seed=0)
    seats = [example.seat for example in examples]
    assert (seats.count(0), seats.count(1)) == by_seat
    message = f"found only {sum(by_seat)} of {number} requested positions"
    assert (message in caplog.text) == (sum(by_seat) < number)


@every_row(
    "prompts, start", (builder("think", "boxed"), ""), (opening_builder("boxed"), "<think>\n")
)
def test_rationale_is_private_and_precedes_move(prompts, start):
    game = GameConfig(**THINK)
    for example in expert_examples(game, prompts, number=20, seed=1, rationale=True):
        action = prompts.style.read_action(example.answer)
        assert action.formatted and re.fullmatch(r"\[\d\]", action.text)
        assert example.answer.endswith(rf"\boxed{{{action.text}}}")
        sentence, _, rest = (start + example.answer).removeprefix("<think>\n").partition("\n")
        assert (
            sentence.endswith(".") and action.text.strip("[]") in sentence or "centre" in sentence
        )
        assert rest.startswith("</think>\n\n" if start else "\n")


def test_rationale_requires_reasoning_style():
    with pytest.raises(ConfigError, match="rationale = true: the prompt style 'answer' of Tic"):
        expert_examples(TICTACTOE, builder(), number=1, seed=0, rationale=True)


ACTIONS = st.from_regex(r"\[[A-Za-z0-9 :,.]*[A-Za-z0-9][A-Za-z0-9 :,.]*\]", fullmatch=True)
REASONS = st.just("") | st.from_regex(r"[A-Za-z0-9 ,=]+\.", fullmatch=True)
BUILDERS = [
    make(parser)
    for parser in ("brackets", "boxed")
    for make in (partial(builder, "answer"), partial(builder, "think"), opening_builder)
]


@settings(deadline=None, derandomize=True)
@given(ACTIONS, REASONS, st.sampled_from(BUILDERS))
def test_written_answers_parse_to_their_actions(action, reason, prompts):
    answer = write_answer(prompts, action, reason)
    assert prompts.style.read_action(answer) == (action, True)
    assert reason in answer
    boxed = prompts.style.parser == "boxed" or prompts.style.name == "think"
    assert answer.endswith(rf"\boxed{{{action}}}" if boxed else action)


def test_unparsable_action_is_rejected_in_one_line():
    assert write_answer(builder(parser="raw"), "I offer peace.") == "I offer peace."
    refused("games.parser = 'plain': reads 'peace' neither", write_answer, builder(), "peace")


def test_answer_and_stop_token_are_scored_after_prompt():
    for example in expert_examples(TICTACTOE, builder(), number=10, seed=0):
        tokens = example.tokens
        assert tokens.scored_ids == tokens.token_ids and tokens.token_ids[-1] == STOP
        assert tokens.temperature == 1.0  # the model's own distribution
        assert tokens.length == len(tokens.prompt_ids) + len(tokens.token_ids)
        whole = str(tiny_tokenizer().decode(tokens.prompt_ids + tokens.token_ids))
        assert whole.endswith(f"<|assistant|>{example.answer}<|end|>")


def test_examples_round_trip_through_file(tmp_path):
    examples = expert_examples(TICTACTOE, builder(), number=9, seed=0)
    sides = split_by_prompt(examples, 0.4, seed=0)
    assert all(sides)
    path = tmp_path / "examples.jsonl"
    write_examples(path, sides)
    assert read_examples(path) == sides


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(0, 1000), st.permutations(list(range(300))))
def test_split_depends_only_on_prompts_and_seed(seed, order):
    examples = [
        Example(env="", seat=0, prompt="", answer=str(i), tokens=token_sample([i // 2], [i, STOP]))
        for i in range(300)
    ]
    train, held_out = split_by_prompt(examples, 0.3, seed)
    assert not {e.tokens.prompt_ids[0] for e in train} & {e.tokens.prompt_ids[0] for e in held_out}
    assert len(train) + len(held_out) == 300 and 40 < len(held_out) < 140
    shuffled = split_by_prompt([examples[i] for i in order], 0.3, seed)
    assert sorted(e.answer for e in shuffled[1]) == sorted(e.answer for e in held_out)


def write(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


WON = ("[4]", "[0]", "I say [1]", "[8]", "[7]")


async def test_answers_with_special_thought_tags_are_examples(tmp_path):
    tokenizer = tiny_tokenizer()
    tags = Tags("[THINK]", "[/THINK]")
    tokenizer.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in tags])
    row = await recorded_game(*WON)
    said = row["turns"][0]["answer"]
    said["text"] = f"{tags.open}hm{tags.close}[4]"
    ids = [*tokenizer.encode(said["text"], add_special_tokens=False), STOP]
    (segment,) = said["sampled"]["segments"]
    segment |= {"token_ids": ids, "logprobs": [-1.0] * len(ids)}
    first, *_ = recorded_examples([write(tmp_path / "train-000003.jsonl", row)], tokenizer)
    assert first.tokens.scored_ids == ids


async def test_winners_turns_keep_recorded_ids(tmp_path):
    won = await recorded_game(*WON)
    lost = await recorded_game("[0]", "[4]", "[1]", "[2]", "[8]", "[6]")
    both = await recorded_game(*WON, players=("main@3", "main@2"))
    tokenizer = tiny_tokenizer()
    path = write(tmp_path / "train-000003.jsonl", won, lost, both, won)
    examples = recorded_examples([path], tokenizer)
    assert [e.answer for e in examples] == ["[4]", "I say [1]", "[7]"]
    for example, turn in zip(examples, won["turns"][::2], strict=True):
        assert example.tokens.prompt_ids == turn["answer"]["sampled"]["prompt_ids"]
        (segment,) = turn["answer"]["sampled"]["segments"]
        assert example.tokens.scored_ids == segment["token_ids"]
        assert example.tokens.scored_ids[-1] == STOP
        assert (example.seat, example.env) == (0, "TicTacToe-v0")
        assert tokenizer.decode(example.tokens.prompt_ids).count(example.prompt) == 1
    everyone = recorded_examples([path], tokenizer, winners_only=False)
    assert [e.seat for e in everyone] == [0] * 6 + [1] * 2


async def test_invalid_turns_and_forfeits_are_skipped(tmp_path):
    forfeited = await recorded_game("[4]", "[0]", "[8]", "[0]")
    own = await recorded_game("[4]", "[0]", "[4]")
    unread = await recorded_game("[4]", "[0]", "one")
    cut = await recorded_game("[4]", "[0]", "[1]", "[8]", "[7]")
    cut["turns"][2]["answer"]["sampled"]["segments"][0]["finish_reason"] = "length"
    path = write(tmp_path / "train-000003.jsonl", forfeited, own, unread)
    tokenizer = tiny_tokenizer()
    assert recorded_examples([path], tokenizer) == []
    with_forfeits = recorded_examples([path], tokenizer, forfeits=True)
    assert [e.answer for e in with_forfeits] == ["[4]", "[8]"]
    everything = recorded_examples([path], tokenizer, winners_only=False)
    assert [e.answer for e in everything] == ["[4]", "[8]"]
    path = write(tmp_path / "train-000004.jsonl", cut)
    assert [e.answer for e in recorded_examples([path], tokenizer)] == ["[4]", "[7]"]


async def test_prompts_with_injected_control_tokens_are_skipped(tmp_path, caplog):
    tokenizer = tiny_tokenizer()
    row = await recorded_game(*WON)
    forged = row["turns"][2]["answer"]
    forged["observation"] += "<|end|>"
    chat = [{"role": "user", "content": forged["observation"]}]
    forged["sampled"]["prompt_ids"] = tokenizer.apply_chat_template(
        chat, return_dict=False, add_generation_prompt=True
    )
    path = write(tmp_path / "train-000003.jsonl", row)
    assert [e.answer for e in recorded_examples([path], tokenizer)] == ["[4]", "[7]"]
    assert "skipped 1 turns" in caplog.text
    forged["sampled"]["prompt_ids"] = builder().template.encode(chat)
    path = write(tmp_path / "train-000003.jsonl", row)
    answers = [e.answer for e in recorded_examples([path], tokenizer)]
    assert answers == ["[4]", "I say [1]", "[7]"]


async def test_evaluation_games_and_other_tokenizers_are_rejected(tmp_path):
    row = await recorded_game(*WON)
    tokenizer = tiny_tokenizer()
    path = write(tmp_path / "eval-000003.jsonl", row)
    refused("eval-000003.jsonl: evaluation games are never", recorded_examples, [path], tokenizer)
    path = write(
        tmp_path / "train-000003.jsonl", row, row | {"spec": row["spec"] | {"purpose": "eval"}}
    )
    with pytest.raises(ConfigError, match="train-000003.jsonl:2: evaluation games are never"):
        recorded_examples([path], tokenizer)
    row["turns"][2]["answer"]["sampled"]["segments"][0]["token_ids"][0] += 1
    path = write(tmp_path / "train-000003.jsonl", row)
    with pytest.raises(ConfigError, match="train-000003.jsonl:1: token ids of another tokenizer"):
        recorded_examples([path], tokenizer)
    path = write(tmp_path / "000003.jsonl", {"prompt_ids": []})
    refused("000003.jsonl:1: not a recorded game", recorded_examples, [path], tokenizer)


def test_user_examples_use_the_prompts_of_play(tmp_path):
    game = Game(TICTACTOE, 0)
    game.step("[4]")
    observation = game.observe()
    played = builder().build(observation)
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Your move."},
        {"role": "assistant", "content": "The centre: [4]"},
    ]
    rows = [
        {"observation": observation_text(observation), "action": "[0]"},
        {"observation": played.text, "action": "[8]"},
        {"messages": chat},
    ]
    first, second, third = jsonl_examples(
        write(tmp_path / "own.jsonl", *rows), TICTACTOE, builder()
    )
    assert first.tokens.prompt_ids == second.tokens.prompt_ids == played.ids
    assert (first.answer, second.answer, first.seat) == ("0", "8", None)
    tokenizer = tiny_tokenizer()
    text = "<|system|>Be brief.<|end|><|user|>Your move.<|end|><|assistant|>"
    assert tokenizer.decode(third.tokens.prompt_ids) == text
    assert tokenizer.decode(third.tokens.token_ids) == "The centre: [4]<|end|>"


def ask(**message: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x", **message}]}


SYSTEM, ASKED, SAID = (
    {"role": role, "content": text}
    for role, text in (("system", "Be brief."), ("user", "one"), ("assistant", "two"))
)
MORE = [{"role": "user", "content": "three"}, {"role": "assistant", "content": "four"}]
FORMS = [
    {"messages": [SYSTEM, ASKED, SAID], "source": "x", "id": 3},
    {"messages": [SYSTEM | {"role": "developer"}, ASKED | {"name": "me"}, SAID | {"weight": 1}]},
    {"messages": [SYSTEM, ASKED, SAID | {"tool_calls": None, "refusal": None}], "tools": []},
    {"messages": [SYSTEM, ASKED | {"content": [{"type": "text", "text": "one"}]}, SAID]},
    {"prompt": [SYSTEM, ASKED], "completion": [SAID]},
    {"prompt": [SYSTEM, ASKED], "completion": "two"},
    {"prompt": "one", "completion": "two", "system": "Be brief."},
    {"instruction": "one", "input": "", "output": "two", "system": "Be brief."},
    {
        "system": "Be brief.",
        "conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}],
    },
]


@pytest.mark.parametrize("is_list", [False, True])
def test_formats_of_other_tools_give_same_example(tmp_path: Path, is_list: bool) -> None:
    rows = "[" + ",\n".join(map(json.dumps, FORMS)) + "]"
    lines = "\r\n".join(map(json.dumps, FORMS))
    path = tmp_path / "theirs.jsonl"
    path.write_text(rows if is_list else lines, encoding="utf-8-sig")
    found = jsonl_examples(path, TICTACTOE, builder())
    assert len(found) == len(FORMS) and {each.key for each in found} == {found[0].key}
    text = "<|system|>Be brief.<|end|><|user|>one<|end|><|assistant|>"
    assert tiny_tokenizer().decode(found[0].tokens.prompt_ids) == text


def test_chat_answers_are_examples_unless_weight_is_zero(tmp_path: Path) -> None:
    hello = {"role": "assistant", "content": "Hello."}
    rows = [
        {"messages": [SYSTEM, hello, ASKED, SAID, *MORE]},
        {"messages": [SYSTEM, hello, ASKED, SAID | {"weight": 0}, *MORE]},
        {"messages": [SYSTEM, hello, ASKED, SAID, MORE[0]]},
        {"prompt": [SYSTEM, hello, ASKED, SAID, MORE[0]], "completion": [MORE[1]]},
    ]
    found = jsonl_examples(write(tmp_path / "own.jsonl", *rows), TICTACTOE, builder())
    assert [each.answer for each in found] == ["two", "four", "four", "two", "four"]
    first, second, *others = found
    assert [each.key for each in others] == [second.key, first.key, second.key]
    shown = tiny_tokenizer().decode(second.tokens.prompt_ids)
    assert (
        "Hello." in shown and "two" in shown and shown.endswith("<|user|>three<|end|><|assistant|>")
    )


@every_row(
    "line, words",
    ("{", ":3: not JSON"),
    ("[]", ":3: list, not an object; write one JSON object per line"),
    ("{}", ":3: unknown format (keys: none); use observation and action, messages, or"),
    ('{"observation": "x"}', ":3: unknown format (keys: observation); use observa"),
    ('{"observation": "x", "action": 4}', ":3: observation and action must be non-empty"),
    ('{"observation": "x", "action": "4"}', ":3: games.parser = 'plain': reads '4'"),
    ('{"messages": []}', ":3: messages = []: must be a string or message list"),
    ('{"messages": ["x"]}', ":3: messages.0 = 'x': must be an object with role and"),
    ('{"messages": [{"role": "user"}, {}]}', ":3: messages.0.content = None: must be non-empty"),
    ('{"messages": [{"role": "king", "content": "x"}]}', ":3: messages.0.role = 'king': must be"),
    (json.dumps(ask(content=[{"type": "image_url"}])), ":3: messages.0.content: only text parts"),
    (json.dumps(ask(content="\ud800")), ":3: messages.0.content = '\\ud800': must be non-emp"),
    (json.dumps(ask(reasoning_content="x")), ":3: messages.0.reasoning_content: unsupported; w"),
    ('{"messages": [], "tools": [{}]}', ":3: tools: tool calls are unsupported; remove the row"),
    ('{"prompt": 3, "completion": "x"}', ":3: prompt = 3: must be a string or message list"),
    (
        json.dumps({"messages": [{"role": "user", "content": "x"}] * 2}),
        ":3: messages: no assistant message to train on; add one",
    ),
    (
        json.dumps({"prompt": [ASKED, SAID], "completion": [SAID | {"weight": 0}]}),
        ":3: completion: no assistant message to train on; add one",
    ),
    (json.dumps({"observation": "x " * 5000, "action": "[4]"}), "max_prompt_tokens = 4096"),
)
def test_file_errors_name_the_line(line, words, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(f'{{"observation": "x", "action": "[4]"}}\n\n{line}\n', encoding="utf-8")
    said = line_of(jsonl_examples, path, TICTACTOE, builder())
    assert words in said
    assert said.startswith(f"{path}:3: ")


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="no such file; give a JSONL file"):
        jsonl_examples(tmp_path / "none.jsonl", TICTACTOE, builder())
