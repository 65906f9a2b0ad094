"""Test TextArena 1.x's games, if it is installed or `UNSTABLE_TEXTARENA1` is its source's folder.

With 0.7 installed, one test runs this file in a process that imports the source.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import textarena

from tests.helpers.mistakes import line_of
from tests.helpers.textarena1 import KUHN, trace
from tests.helpers.trees import uniform
from unstable.config import ConfigError, GameConfig, InvalidMovesConfig
from unstable.games import copies
from unstable.games.catalog.bare import GAME_ENV
from unstable.games.catalog.vetted import PACK, known_defect
from unstable.games.check import check_game, settled
from unstable.games.environment import ServiceDownError
from unstable.games.game import Game
from unstable.games.services import game_info, lists_legal_moves, programs, prompt_style
from unstable.games.textarena import env_class, known_ids
from unstable.games.textarena1 import BareTextArenaEnvironment, printed_moves
from unstable.solving.best_response import assess
from unstable.solving.tree import as_key, grow
from unstable.types import Observation

SOURCE = os.environ.get("UNSTABLE_TEXTARENA1")
ROOT = Path(__file__).parent.parent.parent
IDS = known_ids() if GAME_ENV else []
on_1 = pytest.mark.skipif(not GAME_ENV, reason="TextArena 1.x is not installed")
GAMES = "tests.helpers.bare_games"
RETRIES = InvalidMovesConfig(allowed=2000)
JUDGED = ("Debate-", "GuessWho-", "ScenarioPlanning-", "TwentyQuestions-")  # by OpenRouter
UNGUESSED = ("SpellingBee-", "Sudoku-", "WordChains-")  # few random moves are legal


def run(*arguments: str, first: str = "") -> str:
    """Run Python, with the packages of a folder before the installed ones; return its output."""
    env = {**os.environ, "PYTHONPATH": f"{first}{os.pathsep}{ROOT}"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(bool(GAME_ENV), reason="TextArena 1.x is installed: the tests below run")
@pytest.mark.skipif(not SOURCE, reason="UNSTABLE_TEXTARENA1 names no folder with TextArena 1.x")
def test_source_passes_these_tests() -> None:
    assert " passed" in run("-m", "pytest", "-n", "0", __file__, first=str(SOURCE))


@pytest.mark.skipif(bool(GAME_ENV), reason="TextArena 0.7 is not installed")
@pytest.mark.skipif(not SOURCE, reason="UNSTABLE_TEXTARENA1 names no folder with TextArena 1.x")
def test_games_of_the_catalog_are_the_same_in_both_versions() -> None:
    theirs = json.loads(run("-m", "tests.helpers.textarena1", first=str(SOURCE)))
    assert len(theirs) > 5
    for name, played in theirs.items():
        assert played == json.loads(json.dumps(trace(name))), name


def fitting(env: str, **changes: Any) -> GameConfig | None:
    """Return the id's config with the first number of seats that it accepts; None: refused."""
    for seats in (2, 1, 3, 4, 6):
        config = GameConfig(env=env, seats=seats, **changes)
        try:
            check_game(config)
        except ConfigError as error:
            assert "\n" not in str(error) and "; " in str(error), error
            continue
        return settled(config)
    return None


def tried(game: Game, rng: random.Random) -> str:
    """Draw a legal move, or a guess at one by the family's form."""
    if lists_legal_moves(game.config):
        return rng.choice(game.legal_moves())
    first, second = rng.randint(0, 9), rng.randint(0, 9)
    valid = game.env.raw.state.game_state.get("valid_moves") or [""]
    card = rng.choice(["A", "J", "Q", "K", str(first + 1)])
    units = 50 if game.config.env.endswith("-large") else 20
    forms = {
        "Blackjack": rng.choice(["hit", "stand"]),
        "IteratedRockPaperScissors": rng.choice(["rock", "paper", "scissors"]),
        "IteratedPrisonersDilemma": rng.choice(["cooperate", "defect"]),
        "ThreePlayerIPD": f"{first % 3} defect {second % 3} cooperate",
        "GuessTheNumber": f"{first + second + 1}",
        "ColonelBlotto": f"A{first} B{second} C{units - first - second}",
        "Battleship": f"{'ABCDEFGHIJ'[first]}{second}",
        "Chopsticks": f"{rng.choice(['attack', 'split'])} {first % 5} {second % 5}",
        "LiarsDice": rng.choice(["Call", f"Bid: {first + 1}, {second % 6 + 1}"]),
        "Breakthrough": rng.choice(valid),
        "Checkers": rng.choice(valid),
        "Briscola": f"play {first % 3 + 1}",
        "FrozenLake": rng.choice(["up", "down", "left", "right"]),
        "GameOfPureStrategy": card,
        "ThreePlayerGOPS": card,
        "GermanWhist": f"play {first + second % 5}",
        "Golf": rng.choice(["draw", "take", "discard", f"swap {first % 2} {second % 3}"]),
        "Hangman": rng.choice("abcdefghijklmnopqrstuvwxyz"),
        "IndianPoker": rng.choice(["check", "call", "fold", "bet 1", "raise 1"]),
        "IteratedStagHunt": rng.choice(["stag", "hare"]),
        "MemoryGame": " ".join(str(rng.randrange(4)) for _ in range(4)),
        "MarketEntryGame": rng.choice(["E", "S"]),
        "Mastermind": " ".join(rng.sample("123456", 4)),
        "Minesweeper": f"{first} {second}",
        "NewRecruit": rng.choice(["accept", "reject", "propose abcdeabc"]),
        "Othello": f"{first}, {second}",
        "Poker": rng.choice(["check", "call", "fold", "bet 20", "raise 20", "raise 9999"]),
        "QuantumTicTacToe": rng.choice([f"{first},{second}", f"collapse {first}"]),
        "TwoPlayerBomberman": rng.choice(["up", "down", "left", "right", "bomb"]),
        "UsedCarNegotiation": rng.choice(["accept", "reject", f"offer: {7000 + 300 * first}"]),
    }
    quoted = printed_moves("valid moves:" + game.observe().rules.replace("\n", " "))
    return forms.get(game.config.env.partition("-")[0]) or rng.choice([*quoted, str(first)])


def told(seen: Observation) -> tuple[Any, ...]:
    return seen.seat, seen.rules, seen.events, seen.board


@on_1
@pytest.mark.parametrize("env", [env for env in IDS if not env.startswith(JUDGED + UNGUESSED)])
def test_random_game_ends_by_its_rules_and_its_copy_agrees(env: str) -> None:
    if (config := fitting(env, invalid_moves=RETRIES, max_turns=2000)) is None:
        pytest.skip("refused in one line")
    assert config.action_form == "bare" and known_defect(config) is None
    game, again, rng, seats = Game(config, 1), Game(config, 1), random.Random(0), set()
    while not game.done:
        before, action = game.observe(), tried(game, rng)
        seats.add(game.seat)
        assert before == game.observe() and told(before) == told(again.observe())
        if game.turns == 3:
            again = again.copied()
        step = game.step(action)
        assert again.step(action) == step
        if step.invalid:
            assert not step.done, "an env does not end a game over refusals"
            seen = game.observe()
            assert seen.notice and told(seen) == told(before)
    assert not game.truncated and game.forfeit is None and game.reason
    assert (again.outcomes, again.reason) == (game.outcomes, game.reason)
    assert all(-1 <= outcome <= 1 for outcome in game.outcomes)
    assert len(seats) > config.seats // 2  # in SecretMafia, the first night's victim never moves
    assert BareTextArenaEnvironment not in copies._not_pickled


@on_1
def test_chance_is_the_games_own_and_can_be_drawn_again() -> None:
    config = GameConfig(env="Blackjack-v1", seats=1)
    one, other, third = Game(config, 1), Game(config, 1), Game(config, 2)
    third.observe()
    random.seed(5)
    process = random.getstate()
    assert one.observe() == other.observe() != third.observe()
    for _ in range(2):
        other.step("stand")
        one.step("stand")
    assert one.observe() == other.observe() and random.getstate() == process
    fresh = one.copied()
    fresh.reseed(99)
    for game in (one, other, fresh):
        game.step("stand")
        game.step("stand")
    assert one.observe() == other.observe() != fresh.observe()


@on_1
def test_ids_are_those_of_the_installed_version() -> None:
    assert "TicTacToe-v1" in IDS and not any("-v0" in env or "-mdp" in env for env in IDS)
    check_game(GameConfig(env="TicTacToe-v1-mdp"))
    for env in ("TicTacToe-v0", "TicTacToe-v0-raw", "TicTacToe-v0-train"):
        said = line_of(check_game, GameConfig(env=env), "games.0")
        assert said.startswith(f"games.0.env = {env!r}: not an id of TextArena 1.x, which is")
        assert "use 'TicTacToe-v1'" in said
    said = line_of(check_game, GameConfig(env="ConnectFour-v0-blind"))
    assert "use 'ConnectFour-v1-blind'" in said
    assert "did you mean 'TicTacToe-v1'" in line_of(check_game, GameConfig(env="TicTacTo-v1"))
    assert {each.config.env for each in PACK} >= {"TicTacToe-v1", "Nim-v1", KUHN}


@on_1
def test_unsupported_seats_and_arguments_are_rejected_in_one_line() -> None:
    said = line_of(check_game, GameConfig(env="TicTacToe-v1", seats=3), "games.0")
    assert said.startswith("games.0.seats = 3: the game needs 2 seats; use")
    said = line_of(check_game, GameConfig(env="Nim-v1", args={"piles": []}), "games.0")
    assert said.startswith("games.0.args = {'piles': []}: piles must be")
    said = line_of(check_game, GameConfig(env="Nim-v1", args={"sticks": 3}), "games.0")
    assert said.startswith("games.0.args = {'sticks': 3}: Nim has no parameter 'sticks'")


@on_1
def test_refused_moves_are_counted_by_the_game_alone() -> None:
    config = GameConfig(env="TicTacToe-v1", invalid_moves=InvalidMovesConfig(allowed=2))
    game = Game(config, 0)
    assert not game.step("4").invalid
    before = game.observe()
    for move in ("4", "I take the corner"):
        assert game.step(move) == (False, True)
        seen = game.observe()
        assert told(seen) == told(before) and "invalid move" in seen.notice
    assert game.step("9") == (True, True) and game.forfeit == 1
    assert game.outcomes == [0.0, -1.0] and not game.env.raw.state.done
    assert "Player 1 forfeits by an invalid move: " in game.reason
    assert "0 to 8" in game.reason


@on_1
def test_elimination_ranks_seats_and_refusals_eliminate_nobody() -> None:
    config = GameConfig(
        env="LiarsDice-v1",
        seats=3,
        args={"num_dice": 1},
        invalid_moves=InvalidMovesConfig(allowed=5),
    )
    game = Game(config, 0)
    for _ in range(5):
        game.step("I pass")
    assert not game.env.raw.state.eliminated and game.seat == 0
    out = []
    while not game.done:
        game.step(f"Bid: {3 - len(game.env.raw.state.eliminated)}, 6")
        out.append(game.seat)
        game.step("Call")
    assert game.payoffs == [-1.0, 0.0, 1.0] and game.outcomes == game.payoffs
    assert game.own_rewards() == game.payoffs


@on_1
def test_wins_draws_and_shares_are_outcomes() -> None:
    won = Game(GameConfig(env="TicTacToe-v1"), 0)
    for move in "03142":
        won.step(move)
    assert won.outcomes == [1.0, -1.0] and won.reason == "Player 0 has won!"
    drawn = Game(GameConfig(env="TicTacToe-v1"), 0)
    for move in "012435768":
        drawn.step(move)
    assert drawn.done and drawn.outcomes == [0.0, 0.0]
    shares = {outcome for seed in range(20) for outcome in stood(seed)}
    assert len(shares) > 2 and min(shares) >= 0 and max(shares) <= 1


def stood(seed: int) -> list[float]:
    game = Game(GameConfig(env="Blackjack-v1", seats=1), seed)
    while not game.done:
        game.step("stand")
    return game.outcomes


@on_1
def test_seat_sees_its_own_information_once() -> None:
    game = Game(settled(GameConfig(env=KUHN, prompt="answer", args={"max_rounds": 1})), 0)
    first = game.observe()
    game.step("check")
    second = game.observe()
    cards = ["'J'", "'Q'", "'K'"]
    assert [sum(card in line for card in cards) for line in first.events] == [1]
    assert first.events != second.events[:1]
    assert second.events[1:] == ["Player 1, submitted move: 'check'."]
    assert "'bet'" in second.board and "?" in second.board
    talk = Game(settled(GameConfig(env="IteratedPrisonersDilemma-v1", prompt="answer")), 0)
    talk.step("Let us both cooperate.")
    assert talk.observe().events.count("Player 0: Let us both cooperate.") == 1


@on_1
def test_action_is_cut_out_of_the_answer() -> None:
    config = settled(GameConfig(env="TicTacToe-v1", prompt="think"))
    style = prompt_style(config)
    assert style.read_action("<think>The centre.</think>I take \\boxed{4}.") == ("4", True)
    assert style.read_free_action("I take [4], the centre.") == ("4", True)
    short = prompt_style(config.model_copy(update={"prompt": "compact"}))
    assert short.read_action("4") == ("4", True)
    assert prompt_style(settled(GameConfig(env="TicTacToe-v1"))).name == "compact"


@on_1
def test_catalog_applies_only_to_unchanged_rules() -> None:
    assert programs(GameConfig(env="TicTacToe-v1")) == ["expert", "random"]
    assert programs(GameConfig(env="SimpleTak-v1")) == ["rules", "random"]
    changed = GameConfig(env="LiarsDice-v1")
    assert game_info(changed).name == "" and programs(changed) == []
    printed = GameConfig(env="PigDice-v1")
    assert game_info(printed).legal_moves is None and programs(printed) == ["random"]
    assert Game(printed, 0).legal_moves() == ["roll", "hold"]


@on_1
def test_mafia_wins_and_loses_as_a_team() -> None:
    config, winners = fitting("SecretMafia-v1"), set()
    assert config is not None and config.teams == ((0, 1), (2, 3, 4, 5))
    assert programs(config) == ["random"]
    for seed in range(20):
        game, rng = Game(config, seed), random.Random(seed)
        while not game.done:
            roles = game.env.raw.state.game_state["player_roles"]
            assert (roles[game.env.mover] == "Mafia") == (game.seat < 2)
            assert not game.step(rng.choice(game.legal_moves())).invalid
        mafia, village = game.outcomes[:2], game.outcomes[2:]
        assert {*mafia, *village} == {-1.0, 1.0} and len({*mafia}) == len({*village}) == 1
        winners.add(mafia[0])
    assert winners == {-1.0, 1.0}


@on_1
def test_hanoi_expert_solves_in_the_fewest_moves() -> None:
    game = Game(GameConfig(env="TowerOfHanoi-v1", seats=1, args={"num_disks": 3}), 0)
    while not game.done:
        game.step(next(iter(game.expert_moves())))
    assert game.turns == 7 and game.outcomes == [1.0]


@on_1
def test_kuhn_poker_is_solved_exactly_and_its_expert_is_an_equilibrium() -> None:
    config = settled(GameConfig(env=KUHN, args={"max_rounds": 1}))
    tree, policy = grow(config), {}
    for seed in range(60):
        for first in ("check", "bet"):
            game = Game(config, seed)
            policy[as_key(game.observe())] = game.expert_moves()
            game.step(first)
            policy[as_key(game.observe())] = game.expert_moves()
            game.step("bet" if first == "check" else "fold")
            if not game.done:
                policy[as_key(game.observe())] = game.expert_moves()
    assert len(policy) == len(tree.decisions) == 12
    found = assess(tree, policy, forfeits=True)
    assert found.exploitability == pytest.approx(0, abs=1e-9)
    assert found.values == pytest.approx((1 / 18, -1 / 18))  # Player 1 opens
    assert assess(tree, uniform(tree), forfeits=True).exploitability > 0.4
    theirs = grow(settled(GameConfig(env="KuhnPoker-v1", args={"max_rounds": 1})))
    assert (len(theirs.decisions), theirs.most) == (12, 1.0)


@on_1
def test_error_at_a_printed_move_is_rejected_in_one_line() -> None:
    said = line_of(check_game, GameConfig(env=f"{GAMES}:Raising"), "games.0")
    assert "any action of seat 0 after 0 turns raises KeyError" in said


@on_1
def test_printed_list_is_used_only_if_it_is_complete_and_right() -> None:
    for name in ("Misprinted", "PrintsOnce"):
        assert not lists_legal_moves(GameConfig(env=f"{GAMES}:{name}"))
    assert lists_legal_moves(GameConfig(env="LeducHoldem-v1"))
    assert lists_legal_moves(GameConfig(env="LinesOfAction-v1"))
    assert lists_legal_moves(GameConfig(env="PegJump-v1", seats=1))
    assert not lists_legal_moves(GameConfig(env="FrozenLake-v1", seats=1, args={"num_holes": 6}))


@on_1
def test_board_that_an_env_adds_to_its_events_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(env: Any) -> tuple[int, list[Any]]:
        number, seen = env.state.current_player_id, env.state.get_current_player_observation()
        return number, [*seen, (-1, f"Deal of seat {number}", textarena.ObservationType.GAME_BOARD)]

    monkeypatch.setattr(env_class(GameConfig(env=KUHN)), "get_observation", own)
    game = Game(GameConfig(env=KUHN), 0)
    for _ in range(2):
        assert game.observe() == game.observe() and "Deal of seat" in game.observe().board
        game.step(game.legal_moves()[0])


@on_1
def test_leduc_is_played_and_solved() -> None:
    config = GameConfig(env="unstable.games.catalog.leduc:Leduc", invalid_moves=RETRIES)
    check_game(config)
    assert config.env in [each.config.env for each in PACK]
    game = Game(settled(config), 0)
    before = game.observe()
    assert game.step("[raise]") == (False, True)
    seen = game.observe()
    assert "must be one of" in seen.notice and told(seen) == told(before)
    assert len(grow(settled(config)).decisions) == 288


@on_1
def test_silent_judge_gets_a_second_request_and_is_no_move() -> None:
    game = Game(GameConfig(env=f"{GAMES}:BusyJudge"), 0)
    assert game.step("hello") == (False, False) and game.turns == 1
    seen = game.observe()
    assert seen.seat == 1 and seen.events == ["Player 0: hello"] and not seen.notice
    assert game.step("bye") == (True, False) and game.outcomes == [-1.0, 1.0]


@on_1
def test_dead_judge_fails_the_game_and_no_seat_forfeits() -> None:
    game = Game(GameConfig(env=f"{GAMES}:DeadJudge"), 0, trusted=True)
    with pytest.raises(ServiceDownError, match="could not process 6 actions in a row"):
        game.step("hello")
    assert game.forfeit is None and not game.done


@on_1
def test_printed_moves_are_in_quotes_or_between_commas() -> None:
    assert printed_moves("Available Moves: '0', '4'\nvalid actions: 'a b'") == ["a b"]
    assert printed_moves("Legal moves: a1 b2, c1 c2\nScore: 3") == ["a1 b2", "c1 c2"]
    assert printed_moves("Available fields: 'A'") == printed_moves("Moves: 'x'") == []
    assert textarena.__version__.startswith("1.")
