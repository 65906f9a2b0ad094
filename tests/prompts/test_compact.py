"""The prompt style `compact`: each game in few tokens, and nothing that the seat may not know."""

import random

from tests.helpers.models import tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.config import GameConfig, ModelConfig
from unstable.games.game import Game
from unstable.games.services import prompt_style
from unstable.models.base import load_tokenizer
from unstable.prompts import PromptBuilder, write_answer

GAMES = {
    "TicTacToe": GameConfig(env="TicTacToe-v0", prompt="compact"),
    "Nim": GameConfig(env="Nim-v0", prompt="compact"),
    "ConnectFour": GameConfig(env="ConnectFour-v0", prompt="compact"),
    "Kuhn": GameConfig(env="unstable.games.catalog.kuhn:KuhnPoker", prompt="compact"),
    "Leduc": GameConfig(env="unstable.games.catalog.leduc:Leduc", prompt="compact"),
    "Tak": GameConfig(env="SimpleTak-v0", args={"board_size": 3}, prompt="compact"),
    "Three": GameConfig(env="ThreePlayerTicTacToe-v0", seats=3, prompt="compact"),
    "Pig": GameConfig(env="PigDice-v0-short", prompt="compact"),
    "Hanoi": GameConfig(env="TowerOfHanoi-v0", seats=1, prompt="compact"),
    "Mastermind": GameConfig(env="Mastermind-v0", seats=1, prompt="compact"),
    "Number": GameConfig(env="GuessTheNumber-v0", seats=1, prompt="compact"),
}


def after(config: GameConfig, *actions: str, seed: int = 0) -> Game:
    game = Game(config, seed)
    for action in actions:
        game.observe()
        game.step(action)
    return game


@every_row(
    "name, actions, position",
    ("TicTacToe", [], "012345678"),
    ("TicTacToe", ["[4]"], "0123O5678"),
    ("TicTacToe", ["[4]", "[0]"], "O123X5678"),
    ("Nim", ["[2 4]"], "3 4 1"),
    ("ConnectFour", [], "0 1 2 3 4 5 6"),
    ("ConnectFour", ["[col 3]", "[col 3]", "[col 0]"], "0O 1 2 3OX 4 5 6"),
    ("ConnectFour", ["[col 6]"] * 6, "0 1 2 3 4 5 XOXOXO"),
    ("Tak", ["[4]", "[0]", "[8]"], "X 1 2/3 O 5/6 7 O"),
    (
        "Three",
        ["[0]", "[6]", "[12]", "[1]"],
        "Z Z 2 3 4/5 X 7 8 9/10 11 Y 13 14/15 16 17 18 19/20 21 22 23 24",
    ),
    ("Pig", [], "0 0 0 50"),
    ("Hanoi", ["[A C]", "[A B]"], "A 3, B 2, C 1"),
    ("Mastermind", [], "4 different of 1-6:"),
    ("Number", [], "1-20:"),
)
def test_position_shows_the_seats_view(name, actions, position):
    assert after(GAMES[name], *actions).observe().position == position


@every_row(
    "actions, rest",
    ([], "1/3 +0: check bet"),
    (["[check]"], "1/3 +0 check: check bet"),
    (["[bet]"], "1/3 +0 bet: fold call"),
    (["[check]", "[bet]"], "1/3 +0 check bet: fold call"),
)
def test_kuhn_position_shows_only_own_card(actions, rest):
    game = after(GAMES["Kuhn"], *actions)
    card = "JQK"[game.env.raw.state.game_state["player_cards"][game.seat]]
    assert game.observe().position == f"{card} {rest}"


def test_fold_changes_the_lead():
    game = after(GAMES["Kuhn"], "[bet]", "[fold]")
    lead = {1: "+2", 0: "-2"}  # player 1 opens the first round and bets
    assert game.observe().position.split()[2].removesuffix(":") == lead[game.seat]


def test_pig_position_starts_with_own_score():
    game = after(GAMES["Pig"])
    while not game.done:
        state = game.env.raw.state.game_state
        scores, total = state["scores"], state["turn_total"]

        own, other = scores[game.seat], scores[1 - game.seat]
        assert game.observe().position == f"{own} {other} {total} 50"
        game.step("[hold]" if total > 5 else "[roll]")
    assert sorted(game.outcomes) == [-1, 1]


def test_guesses_are_shown_with_their_hints():
    game = after(GAMES["Number"], "[3]", "[18]")
    number = game.env.raw.state.game_state["game_number"]
    hints = [f"{guess} {'lower' if guess > number else 'higher'}" for guess in (3, 18)]
    assert game.observe().position == f"1-20: {', '.join(hints)}"
    game = after(GAMES["Mastermind"])
    game.env.raw.state.game_state["secret_code"] = [1, 2, 3, 4]
    for guess in ("[2 1 5 6]", "[1 2 4 3]", "[5 2 6 3]"):
        game.step(guess)
    shown = "2 1 5 6 = 0 2, 1 2 4 3 = 2 2, 5 2 6 3 = 1 1"
    assert game.observe().position == f"4 different of 1-6: {shown}"


@every_row("name", *GAMES)
def test_every_legal_move_round_trips_as_answer(name):
    """In random games, the env accepts the answers of `write_answer`, read back."""
    config, chance = GAMES[name], random.Random(3)
    prompts = PromptBuilder(tiny_tokenizer(), prompt_style(config), {}, 4096)
    for seed in range(3):
        game = Game(config, seed)
        while not game.done:
            observation = game.observe()
            prompt = prompts.build(observation)
            assert prompt.text == f"{observation.brief}\n{observation.position}"
            action = chance.choice(game.legal_moves())
            answer = write_answer(prompts, action)
            assert answer == action.strip("[]")
            assert not game.step(prompts.style.read_action(answer).text).invalid


@every_row("name", *GAMES)
def test_changing_part_is_last_and_short(name):
    """With the real model's tokenizer: two turns share all but the position and what follows."""
    prompts = PromptBuilder(load_tokenizer(ModelConfig()), prompt_style(GAMES[name]), {}, 4096)
    game = Game(GAMES[name], 0)
    first = prompts.build(game.observe()).ids
    game.step(game.legal_moves()[0])
    second = prompts.build(game.observe()).ids
    shared = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert len(second) - shared <= (90 if name == "Three" else 25)


def test_unsupported_games_and_styles_have_no_position():
    blind = GameConfig(env="ConnectFour-v0", args={"is_open": False}, prompt="compact")
    other = GameConfig(env="Othello-v0", prompt="compact")
    for config in (blind, other):
        assert prompt_style(config).name == "answer"
        assert Game(config, 0).observe().position == ""
    assert Game(GameConfig(env="Nim-v0", prompt="answer"), 0).observe().position == ""
