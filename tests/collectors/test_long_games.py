"""Prompts of long games stay short: a board that an event repeats is the board, once."""

import random

from tests.helpers.rows import every_row
from unstable.config import GameConfig, InvalidMovesConfig
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.prompts import MAX_EVENTS, observation_text


def play_long(env: str, seats: int, other_moves: list[str]) -> Game:
    """150 turns, or to the end if that comes first."""
    policy = InvalidMovesConfig(allowed=10**6)
    config = GameConfig(env=env, seats=seats, max_turns=150, invalid_moves=policy)
    rng, game = random.Random(0), Game(config, seed=1)
    while not game.done:
        observation = game.observe()
        around = len(observation.rules) + len(observation.board) + len(observation.notice)
        assert len(observation_text(observation)) < MAX_EVENTS + around + 1000
        moves = game.legal_moves() if lists_legal_moves(config) else other_moves
        game.step(rng.choice(moves))
    return game


SQUARES = [f"[{row}{column}]" for row in "ABCDE" for column in range(5)]


@every_row(
    "env, seats, moves",
    ("SpiteAndMalice-v0", 2, []),
    ("Battleship-v0", 2, SQUARES),
    ("Stratego-v0", 2, []),
    ("PigDice-v0", 2, []),
    ("SettlersOfCatan-v0", 4, ["[END TURN]", "[ROLL]", "[1]", "[2]", "[3]"]),
    ("Poker-v0", 4, ["[Call]", "[Check]", "[Raise 20]"]),
)
def test_observations_stay_within_bound(env: str, seats: int, moves: list[str]) -> None:
    play_long(env, seats, moves)


def test_battleship_events_exclude_boards() -> None:
    game = Game(GameConfig(env="Battleship-v0", max_turns=150), seed=1)
    for turn, square in enumerate(square for square in SQUARES[:20] for _ in range(2)):
        observation = game.observe()
        assert len(observation.events) == turn
        assert all("\n" not in event for event in observation.events)
        assert len(observation_text(observation)) < 4000
        game.step(square)
    rows = game.observe().board.splitlines()[-5:]
    assert sum(cell in ("X", "O") for row in rows for cell in row.split()) == 40


def test_board_in_a_message_stays_an_event() -> None:
    game = Game(GameConfig(env="SimpleNegotiation-v0"), seed=0)
    game.observe()
    game.step("One\ntwo\nthree\nfour [Offer: 1 Wheat -> 1 Wood]")
    assert any("four" in event for event in game.observe().events)
