"""Test rule bots: better than random, legal, blind to hidden information, true to their rules."""

import math
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.builders import spec
from tests.helpers.rows import every_row
from unstable.collectors.play import play_game
from unstable.collectors.players.programs import RandomPlayer, RulesPlayer
from unstable.commands.prepare import check_games
from unstable.config import GameConfig, parse
from unstable.config.plugins import registered
from unstable.contrib.rules import secret_mafia
from unstable.contrib.rules.textarena import _probability_of, stones_lacking
from unstable.games.catalog.table import GAMES as KNOWN
from unstable.games.catalog.vetted import PACK
from unstable.games.game import Game
from unstable.games.services import game_info, lists_legal_moves, rule_bot, with_teams
from unstable.types.intervals import mean_interval
from unstable.types.seeds import derive_seed

GAMES = {
    "tak": GameConfig(env="SimpleTak-v0"),
    "large tak": GameConfig(env="SimpleTak-v0-medium"),
    "three players": GameConfig(env="ThreePlayerTicTacToe-v0", seats=3),
    "pig": GameConfig(env="PigDice-v0-short", max_turns=200),
    "long pig": GameConfig(env="PigDice-v0", max_turns=300),
    "liars": GameConfig(env="LiarsDice-v0-small", max_turns=200),
    "three liars": GameConfig(env="LiarsDice-v0-small", seats=3, max_turns=200),
    "negotiation": GameConfig(env="SimpleNegotiation-v0"),
    "dilemma": GameConfig(env="IteratedPrisonersDilemma-v0"),
    "codenames": GameConfig(env="Codenames-v0", seats=4, max_turns=81),
    "mafia": GameConfig(env="SecretMafia-v0", seats=6, max_turns=86),
}
LISTS_ALL = ("SimpleTak", "PigDice", "SimpleNegotiation", "IteratedPrisonersDilemma")
"""Games of which the catalog lists all moves of the bot in its spelling."""
by_game = pytest.mark.parametrize("config", GAMES.values(), ids=GAMES.keys())


def test_every_rule_bot_is_tested_and_vetted_games_have_bots() -> None:
    bots = {game_info(config).name for config in GAMES.values()}
    assert bots == {*registered("rules")} and bots < {info.name for info in KNOWN}
    several = [vetted.config for vetted in PACK if vetted.config.seats > 1]
    assert len(several) > 12
    for config in several:
        assert game_info(config).expert or rule_bot(game_info(config)), config.env


async def scores_by_side(config: GameConfig, games: int) -> list[list[float]]:
    """Score the bot against random players from every side of each deal: 1 a win, 0.5 a draw."""
    sides = with_teams(config).teams or [(seat,) for seat in range(config.seats)]
    scores: list[list[float]] = [[] for _ in sides]
    for number in range(games):
        deal, place = divmod(number, len(sides))
        names = ["rules" if seat in sides[place] else "random" for seat in range(config.seats)]
        players = [RulesPlayer() if name == "rules" else RandomPlayer() for name in names]
        game = spec(names, game_id=deal, env=config.key, purpose="eval")
        game = replace(game, teams=with_teams(config).teams)
        result = await play_game(game, config, players, run_seed=derive_seed(7, number))
        assert result.forfeit is None and not result.truncated
        standing = result.standing(sides[place][0])
        scores[place].append({"win": 1.0, "draw": 0.5, "loss": 0.0}[standing])
    return scores


@pytest.mark.parametrize("name", [name for name in GAMES if name != "codenames"])
async def test_rule_bot_beats_random_over_64_games(name: str) -> None:
    scores = sum(await scores_by_side(GAMES[name], 64), [])
    assert mean_interval(scores, 0.0, 1.0).low > 0.5


@pytest.mark.parametrize(("name", "games"), [("codenames", 24), ("mafia", 128)])
async def test_bot_team_beats_random_on_every_side(name: str, games: int) -> None:
    """Also the village of SecretMafia, where the mafia wins 9 of 10 games of random players."""
    for scores in await scores_by_side(GAMES[name], games):
        assert mean_interval(scores, 0.0, 1.0).low > 0.5


def positions(config: GameConfig, games: int) -> Iterator[Game]:
    """Positions of games in which half of the moves are the bot's."""
    for seed in range(games):
        chance, game = random.Random(seed), Game(config, seed)
        while not game.done:
            game.observe()
            yield game
            mix = game.rule_moves()
            moves = list(mix) if chance.random() < 0.5 else game.legal_moves()
            game.step(chance.choice(moves))


@by_game
def test_rule_moves_are_a_distribution_over_valid_moves(config):
    for game in positions(config, games=3):
        mix = game.rule_moves()
        assert math.isclose(sum(mix.values()), 1) and min(mix.values()) > 0
        assert game.rule_moves() == mix, "rule_moves draws random numbers"
        if game_info(config).name in LISTS_ALL:
            assert mix.keys() <= set(game.legal_moves())
        for action in list(mix)[:3]:
            assert not game.copied().step(action).invalid


def shuffled(held: dict[Any, str], hidden: list[Any], chance: random.Random) -> bool:
    """Shuffle the values of the hidden keys; returns whether any value changed."""
    before = [held[key] for key in hidden]
    dealt = chance.sample(before, len(before))
    held.update(zip(hidden, dealt, strict=True))
    return dealt != before


@every_row("name", "codenames", "mafia")
def test_team_bot_ignores_hidden_information(name: str) -> None:
    """Hidden are: words' sides from operatives, other roles from villagers and the mafia."""
    chance, changed = random.Random(0), 0
    for game in positions(GAMES[name], games=6):
        other = game.copied()
        env, mover = other.env.raw, game.env.raw.state.current_player_id
        if name == "mafia":
            roles = env.state.game_state["player_roles"]
            known = {mover} | {n for n in roles if roles[mover] == roles[n] == "Mafia"}
            changed += shuffled(roles, [n for n in roles if n not in known], chance)
        elif mover in (1, 3):
            guessed = env.state.game_state["guessed_words"]
            changed += shuffled(env.board, [w for w in env.board if w not in guessed], chance)
        assert other.rule_moves() == game.rule_moves()
    assert changed > 20


@every_row("name", "liars", "three liars", "negotiation", "dilemma")
def test_bot_ignores_hidden_information(name: str) -> None:
    chance = random.Random(0)
    for game in positions(GAMES[name], games=6):
        other, state, mover = game.copied(), None, game.seat
        state = other.env.raw.state.game_state
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
    game.env.raw.state.game_state.update(state)
    return game


def board(*rows: str) -> list[list[str]]:
    return [[cell.strip(".") for cell in row] for row in rows]


@every_row(
    "rows, mark, lacking",
    (("....", "....", "....", "...."), "O", 4),
    (("O...", "O...", "XO..", ".O.."), "O", 1),
    (("OOO.", "XXXX", "OOO.", "...."), "O", 1),  # along an edge, not through X
    (("OOOO", "XXXX", "....", "...."), "X", 0),
    (("OXO", "XOX", "OXO"), "O", math.inf),
)
def test_stones_lacking_matches_hand_counts(
    rows: tuple[str, ...], mark: str, lacking: float
) -> None:
    assert stones_lacking(board(*rows), mark) == lacking
    turned = [list(column) for column in zip(*board(*rows), strict=True)]
    assert stones_lacking(turned, mark) == lacking


def test_rule_bots_win_then_block() -> None:
    config = GAMES["tak"]
    wins = at(config, board=board("O.XX", "O..X", "O..X", "...."))
    assert wins.rule_moves() == {"[12]": 1.0}
    blocks = at(config, board=board("...X", "O..X", "...X", "O..."))
    assert blocks.rule_moves() == {"[15]": 1.0}
    config = GAMES["three players"]
    both = board("AAA..", "BBB..", "CCC..", ".....", ".....")
    assert at(config, board=both).rule_moves() == {"[3]": 1.0}
    threats = board("A....", "BBB..", "CCC..", ".....", ".....")
    assert at(config, board=threats).rule_moves() == {"[8]": 1.0}
    last = board("A....", "BB...", "CCC..", ".....", ".....")
    assert at(config, board=last).rule_moves() == {"[13]": 1.0}


@every_row(
    "scores, total, action",
    ([0, 0], 20, "[roll]"),
    ([0, 0], 21, "[hold]"),
    ([0, 40], 21, "[roll]"),  # opponent ahead: holds at 26
    ([0, 40], 26, "[hold]"),
    ([0, 71], 60, "[roll]"),  # endgame: rolls until it wins
    ([75, 0], 24, "[roll]"),
    ([75, 0], 25, "[hold]"),
)
def test_pig_bot_holds_at_rule_threshold(scores: list[int], total: int, action: str) -> None:
    game = at(GameConfig(env="PigDice-v0"), scores=scores, turn_total=total)
    assert game.rule_moves() == {action: 1.0}


def test_liars_dice_bot_calls_unlikely_bids_and_bids_own_dice() -> None:
    def moves(own: list[int], quantity: int, face: int) -> dict[str, float]:
        rolls, dice = {0: own, 1: [1] * 3}, {0: len(own), 1: 3}
        bid = {"quantity": quantity, "face_value": face}
        start = at(GAMES["liars"], dice_rolls=rolls, remaining_dice=dice, current_bid=bid)
        return start.rule_moves()

    certain = {"[Bid: 1, 4]": 0.5, "[Bid: 2, 4]": 0.5}
    assert moves([4, 4, 4], 0, 0) == moves([4, 4, 2], 1, 3) == certain
    assert moves([1, 2, 3], 5, 6) == {"[Call]": 1.0}


@every_row("wanted, dice", (0, 3), (1, 3), (2, 3), (3, 3), (4, 3), (-1, 0))
def test_dice_probabilities_match_enumeration(wanted: int, dice: int) -> None:
    rolls = list(product(range(1, 7), repeat=dice))
    counted = sum(roll.count(5) >= wanted for roll in rolls) / len(rolls)
    assert _probability_of(wanted, dice) == pytest.approx(counted)


def test_negotiation_bot_accepts_larger_own_gains() -> None:
    names = ("Wheat", "Wood", "Sheep", "Brick", "Ore")
    values = {0: dict(zip(names, (5, 12, 12, 25, 40), strict=True)), 1: {}}
    owned = {seat: dict.fromkeys(names, 10) for seat in (0, 1)}

    def moves(offered: dict[str, int], requested: dict[str, int]) -> dict[str, float]:
        offer: dict[str, Any] = {"offered_resources": offered, "requested_resources": requested}
        state: dict[str, Any] = {"player_values": values, "player_resources": owned}
        state["current_offer"] = offer | {"from_player": 1, "to_player": 0}

        return at(GAMES["negotiation"], **state).rule_moves()

    assert moves({"Ore": 1}, {"Brick": 1}) == {"[Accept]": 1.0}
    assert "[Accept]" not in moves({"Brick": 1}, {"Ore": 1})
    assert "[Accept]" not in moves({"Ore": 5}, {"Wheat": 11}), "resources missing"
    # Own value of both 12, usual values 15 and 10: 2 sheep for 3 wood are even for the other seat.
    assert moves({"Wheat": 1}, {"Ore": 9}) == {"[Offer: 2 Sheep -> 3 Wood]": 1.0}


# Codenames


def codenames(board: dict[str, str], nouns: list[str], **state: Any) -> Game:
    game = at(GAMES["codenames"], **state)
    game.env.raw.board, game.env.raw.word_list = board, nouns
    return game


def test_clue_targets_nearest_own_or_neutral_words() -> None:
    board = {"apple": "R", "map": "A", "axe": "R", "zoo": "R", "ship": "N", "year": "B"}
    game = codenames(board, ["anger", "mouse", "zone"])
    assert game.rule_moves() == {"[anger 2]": 1.0}
    for action in ("[anger 2]", "[apple]", "[axe]", "[pass]"):
        assert game.rule_moves() == {action: 1.0}
        game.step(action)
        assert not game.done
    assert game.seat == 2
    board = {"p": "R", "origin": "A", "river": "N", "sand": "B"}
    game = codenames(board, ["onion", "queen", "rider", "song"])
    assert game.rule_moves() == {"[queen 1]": 0.5, "[rider 1]": 0.5}


def test_bot_clues_are_legal_and_bot_guesses_correct() -> None:
    for seed in range(8):
        game = Game(GAMES["codenames"], seed)
        (clue, *_) = mix = list(game.rule_moves())
        assert set(mix) <= set(game.legal_moves())
        game.step(clue)
        for _ in range(int(clue.strip("[]").split()[1])):
            (guess,) = game.rule_moves()
            assert game.env.raw.board[guess.strip("[]")] == "R"
            game.step(guess)
        assert game.done or game.rule_moves() == {"[pass]": 1.0}


def test_bots_beat_team_that_never_guesses() -> None:
    """Random players lose to such a team, so a score against random shows little."""
    won = 0
    for seed in range(24):
        game, side, chance = Game(GAMES["codenames"], seed // 2), seed % 2, random.Random(seed)
        while not game.done:
            own = game.seat // 2 == side
            game.step(chance.choice(list(game.rule_moves())) if own else "nothing")
        won += game.outcomes[2 * side] == 1
    assert won >= 22


# SecretMafia: number 0 is a villager, 1 and 4 the mafia, 2 the detective, 3 the doctor

ROLES = ["Villager", "Mafia", "Detective", "Doctor", "Mafia", "Villager"]
GUILTY, HARMLESS = "Player 4 IS a Mafia member.", "Player 0 IS NOT a Mafia member."


def mafia(number: int, phase: str, *events: str) -> dict[str, float]:
    """Return the bot's moves for a seat in a phase, after it has seen these events."""
    game = at(GAMES["mafia"], player_roles=dict(enumerate(ROLES)))
    state = game.env.raw.state
    state.game_state["phase"] = type(game.env.raw.phase)(phase)
    state.current_player_id = number
    return secret_mafia.moves(game.env.raw, events)


@every_row(
    "number, events, vote",
    (0, [], 1),  # no information: lowest other number
    (5, [f"Player 2: {GUILTY}"], 4),
    (5, [f"Player 2: {HARMLESS}"], 1),
    (5, [f"Player 2: {HARMLESS}", "Player 4: [0]"], 4),  # 4 accuses a harmless player
    (5, [f"Player 2: {HARMLESS}", "Player 4: [2]"], 4),  # or the detective
    (5, ["Player 4: [0]", f"Player 2: {HARMLESS}"], 1),  # voted before the finding
    (5, [f"Player 2: {HARMLESS}", "Player 4: Player 2 IS a Mafia member."], 1),  # claims later
    (5, ["Player 4: Player 5 IS a Mafia member."], 4),  # a lie about the voter itself
    (2, [GUILTY], 4),
    (2, ["Player 4: Player 0 IS a Mafia member."], 4),  # a false detective
    (2, [HARMLESS, "Player 4: Player 0 IS a Mafia member."], 4),
    (1, [], 0),
    (1, [f"Player 2: {GUILTY}"], 2),
    (1, [f"Player 5: {GUILTY}\nPlayer 3: {GUILTY}"], 5),  # one speaker, who quotes another
)
def test_secret_mafia_bot_votes(number: int, events: list[str], vote: int) -> None:
    assert mafia(number, "Day-Voting", *events) == {f"[{vote}]": 1.0}


def test_secret_mafia_bot_acts_at_night_and_announces_findings() -> None:
    found = f"Player 2: {HARMLESS}"
    assert mafia(1, "Night-Mafia") == mafia(4, "Night-Mafia") == {"[0]": 1.0}
    assert mafia(1, "Night-Mafia", found) == mafia(4, "Night-Mafia", found) == {"[2]": 1.0}
    assert mafia(3, "Night-Doctor", found) == {"[2]": 1.0}
    assert len(mafia(3, "Night-Doctor")) == 5
    assert set(mafia(2, "Night-Detective", HARMLESS)) == {"[1]", "[3]", "[4]", "[5]"}
    said = {f"{GUILTY} {HARMLESS}": 1.0}
    assert mafia(2, "Day-Discussion", GUILTY, HARMLESS) == said
    for number in (0, 1, 3):
        (text,) = mafia(number, "Day-Discussion", f"Player 2: {GUILTY}")
        assert "IS" not in text and "[" not in text


def test_config_names_rule_bot_by_kind() -> None:
    games = [config.model_dump() for config in (GAMES["tak"], GAMES["pig"])]
    named = {"opponents": {"fixed": [{"kind": "rules"}]}, "eval": {"opponents": ["rules"]}}
    check_games(parse({"games": games, **named}))
    assert all(lists_legal_moves(config) for config in GAMES.values())
