"""Small worlds: the tokenizer, the questions, how one is made, and the one that is shipped."""

import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

import unstable
from tests.helpers.mistakes import line_of, refused
from unstable.commands import world
from unstable.commands.session import Terminated
from unstable.commands.world import loss_of, make_world
from unstable.config import ConfigError, GameConfig, ModelConfig, WorldConfig, WorldRun, load
from unstable.datasets.world import constant_texts, question_examples, random_play
from unstable.games.catalog.kuhn import which_card
from unstable.games.catalog.leduc import which_hand
from unstable.games.catalog.nim import what_is_left
from unstable.games.catalog.tic_tac_toe import what_completes, who_has_three
from unstable.games.game import Game
from unstable.games.info import Question
from unstable.games.services import game_questions, prompt_style
from unstable.models import tiny
from unstable.models.base import load_model, load_tokenizer, named_stop_token_ids
from unstable.prompts import PromptBuilder

TICTACTOE = GameConfig(env="TicTacToe-v0", prompt="compact")
NIM = GameConfig(env="Nim-v0", prompt="compact")
LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
SEEDS = st.integers(0, 2**32)


def small(out: Path, **changes) -> WorldRun:
    settings = {"out": str(out), "games": 40, "steps": 6, "batch_size": 16, "score_games": 4}
    return WorldRun(games=[TICTACTOE, NIM], world=WorldConfig(**settings | changes))


@given(st.lists(st.sampled_from(["In brief.\n", "In", "brief", ".", "\n", "X1O", ">"])))
def test_texts_round_trip_and_constants_are_one_token(pieces):
    tokenizer = tiny.make_tokenizer(["In brief.\n", "In"])
    text = "".join(pieces)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert len(tokenizer.encode("In brief.\n", add_special_tokens=False)) == 1


def test_prompt_has_one_token_for_rules_and_one_per_character():
    tokenizer = tiny.make_tokenizer(constant_texts([TICTACTOE, NIM]))
    prompts = PromptBuilder(tokenizer, prompt_style(TICTACTOE), {}, 4096)
    ids = prompts.build(Game(TICTACTOE, 0).observe()).ids
    assert tokenizer.convert_ids_to_tokens(ids)[1:] == [*"012345678", ">"]
    assert tokenizer.decode(prompts.encode_answer("4")) == "4<eos>"


def test_play_examples_are_all_legal_moves():
    tokenizer = tiny.make_tokenizer(constant_texts([TICTACTOE]))
    prompts = PromptBuilder(tokenizer, prompt_style(TICTACTOE), {}, 4096)
    examples = random_play(TICTACTOE, prompts, 20, seed=1)
    assert examples == random_play(TICTACTOE, prompts, 20, seed=1)
    for example in examples:
        board = tokenizer.decode(example.prompt_ids)[-10:-1]
        answers = [tokenizer.decode(answer) for answer in example.answers]
        assert answers == [f"{cell}<eos>" for cell in board if cell.isdecimal()]


@given(SEEDS)
def test_tictactoe_questions_follow_the_rules(seed):
    for draw in (who_has_three, what_completes):
        text, answers = draw(random.Random(seed))
        board, mark = text[:9], text[9]
        lines = [[board[int(place)] for place in line] for line in LINES]
        if draw is who_has_three:
            assert answers == ([mark] if [mark] * 3 in lines else ["-"])
            continue
        won = [mark] * 3 in lines
        empty = [cell for cell in board if cell.isdecimal()]
        right = [
            cell
            for cell in empty
            if won or any(sorted(line) == sorted([cell, mark, mark]) for line in lines)
        ]
        assert answers == (right or ["-"])


@given(SEEDS)
def test_nim_questions_are_moves(seed):
    question, (answer,) = what_is_left(random.Random(seed))
    piles, take = question.split(":")
    pile, number = map(int, take.split())
    before, after = [[*map(int, sizes.split())] for sizes in (piles, answer)]
    assert before[pile] - number == after[pile] >= 0 < number
    assert sum(before) - number == sum(after)


def test_card_questions_are_about_all_deals():
    for draw, answers in ((which_card, "JQK"), (which_hand, "JQKP")):
        assert {draw(random.Random(seed))[1][0] for seed in range(99)} == set(answers)


def test_question_prompts_differ_from_play_prompts():
    tokenizer = tiny.make_tokenizer(constant_texts([TICTACTOE, NIM]))
    for game in (TICTACTOE, NIM):
        prompts = PromptBuilder(tokenizer, prompt_style(game), {}, 4096)
        first = {example.prompt_ids[0] for example in random_play(game, prompts, 3, seed=0)}
        for question in game_questions(game):
            asked = question_examples(question, prompts, 5, random.Random(0))
            assert not first & {example.prompt_ids[0] for example in asked}


def test_repeated_question_has_all_its_answers():
    """An example holds all draws' answers, which can depend on what its seat does not see."""
    prompts = PromptBuilder(tiny.make_tokenizer([]), prompt_style(NIM), {}, 4096)
    question = Question("Which?", lambda rng: ("a card", [rng.choice("JQK")]))
    examples = question_examples(question, prompts, 30, random.Random(0))
    assert len(examples) == 30 and all(each is examples[0] for each in examples)
    answers = {prompts.decode(ids) for ids in examples[0].answers}
    assert answers == {"J", "Q", "K"} and len(examples[0].answers) == 3


def test_world_is_reproducible_and_loads_in_transformers(tmp_path, capsys):
    folders = [make_world(small(tmp_path / name)) for name in ("a", "b")]
    assert "against random in 4 games" in capsys.readouterr().out
    one, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in folders)
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert AutoTokenizer.from_pretrained(folders[0]).chat_template


def test_mistakes_are_one_line(tmp_path):
    taken = small(tmp_path)
    refused("world.out = .* exists", make_world, taken)
    refused("world.hidden = 20: not a multiple", make_world, small(tmp_path / "new", hidden=20))
    silent = GameConfig(env="TwentyQuestions-v0", seats=1)
    line_of(make_world, small(tmp_path / "new").model_copy(update={"games": [silent]}))
    thinking = GameConfig(env="TicTacToe-v0", prompt="think")
    with pytest.raises(ConfigError, match=r"games.0.prompt = 'think': reasoning is unsupp"):
        make_world(small(tmp_path / "new").model_copy(update={"games": [thinking]}))


def test_shipped_model_is_small_and_loads_in_transformers():
    files = [*tiny.SHIPPED["tiny"].iterdir()]
    assert sum(file.stat().st_size for file in files) < 6_000_000
    assert tiny.SHIPPED["tiny"].is_relative_to(Path(unstable.__file__).parent)
    model: Any = AutoModelForCausalLM.from_pretrained(tiny.SHIPPED["tiny"])
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny.SHIPPED["tiny"])
    chat = [{"role": "user", "content": Game(TICTACTOE, 0).observe().brief + "\n0X2OXO678"}]
    prompt = tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True, return_tensors="pt"
    )
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    answer = model.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(answer) in [f"{cell}<eos>" for cell in "02678"]


def test_shipped_model_plays_legal_moves_evenly():
    """Nearly all probability is on legal moves, nearly evenly, over positions of random play."""
    config = ModelConfig(name="tiny")
    model, tokenizer = load_model(config), load_tokenizer(config)
    assert named_stop_token_ids(config, tokenizer) == {tokenizer.eos_token_id}
    prompts = PromptBuilder(tokenizer, prompt_style(TICTACTOE), {}, 4096)
    legal, even = [], []
    for example in random_play(TICTACTOE, prompts, 30, seed=5):
        with torch.no_grad():
            probabilities = model(torch.tensor([example.prompt_ids])).logits[0, -1].softmax(-1)
        moves = probabilities[[answer[0] for answer in example.answers]]
        legal.append(float(moves.sum()))
        even.append(float(moves.max() / moves.mean()))
    assert sum(legal) / len(legal) > 0.98
    assert sum(even) / len(even) < 1.5


def test_shipped_config_has_the_games_of_the_model():
    config = load("world", {})
    assert [game.env for game in config.games] == ["TicTacToe-v0", "Nim-v0"]


def learned(out: Path, **changes) -> WorldRun:
    """One small world without games to score it."""
    config = small(out, **{"score_games": 0, "games": 10} | changes)
    return config.model_copy(update={"games": [NIM]})


def test_learning_shows_time_and_ends_at_its_targets(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(world, "LOOK_EVERY", 12)
    make_world(learned(tmp_path / "a", steps=60, legal=0.0, kl=1e9, right=0.0))
    said = capsys.readouterr().err
    assert re.search(r"60 steps take about \d+ s; Ctrl-C stops early", said)
    assert "targets reached at step 12; 1 final steps follow" in said
    assert "playing 10 random games of Nim-v0" in said and "questions: Nim, sizes" in said
    make_world(learned(tmp_path / "b", steps=15, legal=0.999, kl=1e9, right=0.0))
    assert "targets reached" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_the_model(tmp_path, capsys, monkeypatch, number):
    steps: list[int] = []

    def interrupted(*arguments: Any):
        steps.append(len(steps))
        if len(steps) == 3:
            signal.raise_signal(number)
        return loss_of(*arguments)

    monkeypatch.setattr(world, "loss_of", interrupted)
    with pytest.raises(Terminated if number == signal.SIGTERM else KeyboardInterrupt):
        make_world(learned(tmp_path / "kept", steps=60))
    assert len(steps) == 3
    assert f"the partly trained model is in {tmp_path / 'kept'}" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "kept").config.num_hidden_layers == 2
