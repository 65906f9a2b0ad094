"""Rule bots: above random, legal, blind to what is hidden, and as their rules say, by hand."""

import math
import random
from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import pytest

from tests.builders import spec
from tests.test_experts import duplicate
from unstable.collectors.play import play_game
from unstable.collectors.players.random import RandomPlayer
from unstable.collectors.players.rules import RulesPlayer
from unstable.config import GameConfig, parse
from unstable.games.game import Game
from unstable.games.rules import RULES, _chance_of, stones_lacking
from unstable.games.services import lists_legal_moves
from unstable.league.evaluation import mean_interval
from unstable.runtime.prepare import check_games
from unstable.seeds import derive_seed


def trades(env: Any) -> list[str]:
    """What the env takes: offers of 1 to 3 of a resource for as many of another, and answers."""
    state, seat = env.state.game_state, env.state.current_player_id
    owned, offer = state["player_resources"][seat], state["current_offer"]
    moves = ["[Deny]"]
    if offer is not None and offer["to_player"] == seat:
        asked = offer["requested_resources"].items()
        moves += ["[Accept]"] * all(owned[name] >= count for name, count in asked)
    pairs = product(permutations(owned, 2), product(range(1, 4), repeat=2))
    return moves + [
        f"[Offer: {give} {mine} -> {take} {other}]"
        for (mine, other), (give, take) in pairs
        if owned[mine] >= give
    ]


def choices(env: Any) -> list[str]:
    """A decision, or what is said of the one to come."""
    return ["[Cooperate]", "[Defect]"]


GAMES = {
    "tak": GameConfig(env="SimpleTak-v0"),
    "large tak": GameConfig(env="SimpleTak-v0-medium"),
    "three players": GameConfig(env="ThreePlayerTicTacToe-v0", seats=3),
    "pig": GameConfig(env="PigDice-v0-short", max_turns=200),
    "long pig": GameConfig(env="PigDice-v0", max_turns=300),
    "liars": GameConfig(env="LiarsDice-v0-small", max_turns=200),
    "three liars": GameConfig(env="LiarsDice-v0-small", seats=3, max_turns=200),
    "negotiation": GameConfig(env="SimpleNegotiation-v0", legal_moves=f"{__name__}:trades"),
    "dilemma": GameConfig(env="IteratedPrisonersDilemma-v0", legal_moves=f"{__name__}:choices"),
}
by_game = pytest.mark.parametrize("config", GAMES.values(), ids=GAMES.keys())


def test_every_rule_bot_is_tried() -> None:
    bots = {type(Game(config, 0).env).__name__ for config in GAMES.values()}
    assert bots == set(RULES)


@by_game
async def test_a_rule_bot_is_above_random_over_256_games(config: GameConfig) -> None:
    """Each deal from every seat against random players; a win is 1, a draw a half."""
    scores = []
    for number in range(256):
        deal, seat = divmod(number, config.seats)
        players = [
            RulesPlayer() if place == seat else RandomPlayer() for place in range(config.seats)
        ]
        names = ["rules" if place == seat else "random" for place in range(config.seats)]
        game = spec(names, game_id=deal, env=config.key, purpose="eval")
        result = await play_game(game, config, players, run_seed=derive_seed(7, number))
        assert result.forfeit is None and not result.truncated
        scores.append({"win": 1.0, "draw": 0.5, "loss": 0.0}[result.standing(seat)])
    score = mean_interval(scores, 0.0, 1.0)
    assert score.low > 0.5


def positions(config: GameConfig, games: int) -> Iterator[Game]:
    """Positions of games in which every other move is the bot's."""
    for seed in range(games):
        chance, game = random.Random(seed), Game(config, seed)
        while not game.done:
            game.observe()
            yield game
            mix = game.rule_moves()
            moves = list(mix) if chance.random() < 0.5 else game.legal_moves()
            game.step(chance.choice(moves))


@by_game
def test_what_a_bot_plays_is_a_distribution_over_moves_that_the_game_takes(
    config: GameConfig,
) -> None:
    for game in positions(config, games=3):
        mix = game.rule_moves()
        assert math.isclose(sum(mix.values()), 1) and min(mix.values()) > 0
        assert game.rule_moves() == mix, "it draws nothing"
        for action in list(mix)[:3]:
            following = duplicate(game)
            assert not following.step(action).invalid


@pytest.mark.parametrize("name", ["liars", "three liars", "negotiation", "dilemma"])
def test_a_bot_does_not_see_what_is_hidden(name: str) -> None:
    chance = random.Random(0)
    for game in positions(GAMES[name], games=6):
        other, state, mover = duplicate(game), None, game.seat
        state = other.env.state.game_state
        for seat in range(game.config.seats):
            if seat == mover:
                continue
            if "dice_rolls" in state:
                dice = state["dice_rolls"][seat]
                dice[:] = [chance.randint(1, 6) for _ in dice]
            elif "player_values" in state:
                for table in (state["player_values"], state["player_resources"]):
                    table[seat] = {key: chance.randint(5, 25) for key in table[seat]}
            else:
                state["decisions"][seat] = chance.choice(["cooperate", "defect"])
        assert other.rule_moves() == game.rule_moves()


def at(config: GameConfig, **state: Any) -> Game:
    """The game's start with some of the env's state changed."""
    game = Game(config, 0)
    game.env.state.game_state.update(state)
    return game


def board(*rows: str) -> list[list[str]]:
    return [[cell.strip(".") for cell in row] for row in rows]


@pytest.mark.parametrize(
    ("rows", "mark", "lacking"),
    [
        (("....", "....", "....", "...."), "O", 4),
        (("O...", "O...", "XO..", ".O.."), "O", 1),
        (("OOO.", "XXXX", "OOO.", "...."), "O", 1),  # along an edge, and not through X
        (("OOOO", "XXXX", "....", "...."), "X", 0),
        (("OXO", "XOX", "OXO"), "O", math.inf),
    ],
)
def test_stones_lacking_by_hand(rows: tuple[str, ...], mark: str, lacking: float) -> None:
    assert stones_lacking(board(*rows), mark) == lacking
    turned = [list(column) for column in zip(*board(*rows), strict=True)]
    assert stones_lacking(turned, mark) == lacking


def test_tak_wins_then_blocks() -> None:
    config = GAMES["tak"]
    wins = at(config, board=board("O.XX", "O..X", "O..X", "...."))
    assert wins.rule_moves() == {"[12]": 1.0}
    blocks = at(config, board=board("...X", "O..X", "...X", "O..."))
    assert blocks.rule_moves() == {"[15]": 1.0}


def test_three_players_win_then_block_the_next_then_the_last() -> None:
    config = GAMES["three players"]
    both = board("AAA..", "BBB..", "CCC..", ".....", ".....")
    assert at(config, board=both).rule_moves() == {"[3]": 1.0}
    threats = board("A....", "BBB..", "CCC..", ".....", ".....")
    assert at(config, board=threats).rule_moves() == {"[8]": 1.0}
    last = board("A....", "BB...", "CCC..", ".....", ".....")
    assert at(config, board=last).rule_moves() == {"[13]": 1.0}


@pytest.mark.parametrize(
    ("scores", "total", "action"),
    [
        ([0, 0], 20, "[roll]"),
        ([0, 0], 21, "[hold]"),
        ([0, 40], 21, "[roll]"),  # the other is ahead: 26
        ([0, 40], 26, "[hold]"),
        ([0, 71], 60, "[roll]"),  # it rolls until it wins
        ([75, 0], 24, "[roll]"),
        ([75, 0], 25, "[hold]"),
    ],
)
def test_pig_holds_where_the_rule_says(scores: list[int], total: int, action: str) -> None:
    game = at(GameConfig(env="PigDice-v0"), scores=scores, turn_total=total)
    assert game.rule_moves() == {action: 1.0}


def test_liars_dice_calls_what_is_unlikely_and_bids_what_it_has() -> None:
    def moves(own: list[int], quantity: int, face: int) -> dict[str, float]:
        rolls, dice = {0: own, 1: [1] * 3}, {0: len(own), 1: 3}
        bid = {"quantity": quantity, "face_value": face}
        start = at(GAMES["liars"], dice_rolls=rolls, remaining_dice=dice, current_bid=bid)
        return start.rule_moves()

    certain = {"[Bid: 1, 4]": 0.5, "[Bid: 2, 4]": 0.5}
    assert moves([4, 4, 4], 0, 0) == moves([4, 4, 2], 1, 3) == certain
    assert moves([1, 2, 3], 5, 6) == {"[Call]": 1.0}


@pytest.mark.parametrize(("wanted", "dice"), [(0, 3), (1, 3), (2, 3), (3, 3), (4, 3), (-1, 0)])
def test_chances_of_dice_by_counting(wanted: int, dice: int) -> None:
    rolls = list(product(range(1, 7), repeat=dice))
    counted = sum(roll.count(5) >= wanted for roll in rolls) / len(rolls)
    assert _chance_of(wanted, dice) == pytest.approx(counted)


def test_negotiation_accepts_what_gains_more_than_the_other() -> None:
    names = ("Wheat", "Wood", "Sheep", "Brick", "Ore")
    values = {0: dict(zip(names, (5, 12, 12, 25, 40), strict=True)), 1: {}}
    owned = {seat: dict.fromkeys(names, 10) for seat in (0, 1)}

    def moves(offered: dict[str, int], requested: dict[str, int]) -> dict[str, float]:
        offer = {
            "from_player": 1,
            "to_player": 0,
            "offered_resources": offered,
            "requested_resources": requested,
        }
        state = {"player_values": values, "player_resources": owned, "current_offer": offer}
        return at(GAMES["negotiation"], **state).rule_moves()

    assert moves({"Ore": 1}, {"Brick": 1}) == {"[Accept]": 1.0}
    assert "[Accept]" not in moves({"Brick": 1}, {"Ore": 1})
    assert "[Accept]" not in moves({"Ore": 5}, {"Wheat": 11}), "it has not so much"
    # Sheep are worth 12 to it and usually 15, so that 5 for 3 bricks of 25 are even for the other.
    assert moves({"Wheat": 1}, {"Ore": 9}) == {"[Offer: 5 Sheep -> 3 Brick]": 1.0}


def test_a_config_names_it_by_its_kind_alone() -> None:
    games = [config.model_dump() for config in (GAMES["tak"], GAMES["pig"])]
    named = {"opponents": {"fixed": [{"kind": "rules"}]}, "eval": {"opponents": ["rules"]}}
    check_games(parse({"games": games, **named}))
    assert all(lists_legal_moves(config) for config in GAMES.values())
