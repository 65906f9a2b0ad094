"""Test games: chance, observations, invalid moves, ends, legal moves and payoffs."""

import random

import numpy as np
import pytest
import textarena as ta
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.games import COUNT_UP, KUHN, LEDUC, LISTED, MIXED, CountUp
from tests.helpers.rows import every_row
from unstable.config import GameConfig, InvalidMovesConfig
from unstable.games.chance import Chance
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.prompts import observation_text
from unstable.types.seeds import derive_seed


def game(env: str, seats: int = 2, seed: int = 0, **config) -> Game:
    return Game(GameConfig(env=env, seats=seats, **config), seed)


def play_randomly(game: Game, seed: int) -> None:
    """Play out with random legal moves."""
    rng = random.Random(seed)
    while not game.done:
        observation = observation_text(game.observe())
        action = rng.choice(game.legal_moves())
        assert not game.step(action).invalid, f"{action} was rejected after: {observation}"


def test_games_keep_global_random_state():
    random.seed(5)
    np.random.seed(5)
    expected = random.Random(5).random(), np.random.RandomState(5).random()
    play_randomly(game(KUHN), 0)
    play_randomly(Game(MIXED[-1], 0), 0)
    assert (random.random(), np.random.random()) == expected


def test_chance_resumes_where_it_stopped():
    """Draws in pieces equal draws at once, including a normal number that is kept for later."""

    def draw(generator) -> list:
        numbers = [generator.random(), generator.gauss(0, 1), generator.randrange(10**30)]
        return [*numbers, generator.sample(range(900), 700), generator.getrandbits(33)]

    own, chance, numbers = random.Random(derive_seed(11, "chance")), Chance(11), []
    outer = random.getstate()
    for _ in range(3):
        with chance:
            assert draw(random) == draw(own)
            numbers += [np.random.random(), np.random.uniform()]
        assert random.getstate() == outer
    with Chance(11):
        again = np.random.random(6).tolist()
    assert again == numbers and len(set(numbers)) == 6
    with Chance(12):
        assert np.random.random() != numbers[0] and random.random() != random.Random(11).random()


def test_env_seed_differs_from_game_seed():
    first = game("PigDice-v0", seed=5)
    rolls = random.Random(5)
    first.step("[roll]")
    shown = observation_text(first.observe())
    assert f"'{rolls.randint(1, 6)}'" not in shown or "busted" in shown


@pytest.mark.parametrize(("env", "seats"), LISTED)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**63 - 1))
def test_legal_moves_are_accepted(env, seats, seed):
    played = game(env, seats, seed, max_turns=80)
    assert lists_legal_moves(played.config)
    play_randomly(played, seed)
    assert len(played.outcomes) == seats
    assert all(-1 <= outcome <= 1 for outcome in played.outcomes)


def test_seat_sees_each_event_once_and_last_board_only():
    played = game("TicTacToe-v0", events="all")
    for action in ("[4]", "[0]", "[1]"):
        played.observe()
        played.step(action)
    observation = played.observe()
    assert observation.seat == 1
    assert observation.rules.startswith("You are Player 1 in Tic Tac Toe.")
    assert observation.events == [
        "Player 0 placed their symbol (O) in cell 4.",
        "Player 1 placed their symbol (X) in cell 0.",
        "Player 0 placed their symbol (O) in cell 1.",
    ]
    assert " X | O | 2 " in observation.board
    assert observation.notice == ""
    assert played.observe() == observation


SHOWN_BY_THE_BOARD = ["TicTacToe-v0", "WildTicTacToe-v0", "Nim-v0", "ConnectFour-v0"]


@pytest.mark.parametrize(
    ("env", "seats"), [*((env, 2) for env in SHOWN_BY_THE_BOARD), ("TowerOfHanoi-v0", 1)]
)
def test_boards_without_events_suffice_for_perfect_play(env, seats):
    """Positions with equal observations have equal best moves, regardless of their history."""
    best: dict[str, dict[str, float]] = {}
    by_history = set()
    for seed in range(60):
        rng, played = random.Random(seed), game(env, seed=0, seats=seats)
        moves: list[str] = []
        while not played.done and len(moves) < 6:
            observation = played.observe()
            assert observation.events == [] and observation.board
            shown = observation_text(observation)
            mix = played.expert_moves()
            assert best.setdefault(shown, mix) == mix
            by_history.add((shown, tuple(moves)))
            moves.append(rng.choice(played.legal_moves()))
            played.step(moves[-1])
    assert len(by_history) > len(best)


def test_events_are_omitted_only_with_complete_boards():
    def events(env, **changes):
        played = game(env, **changes)
        played.step(played.legal_moves()[0])
        return played.observe().events

    assert len(events("ConnectFour-v0-blind")) == 1
    assert events("Othello-v0") != [] == events("Othello-v0", events="none")
    assert events("TicTacToe-v0", events="all") != []
    moves = "tests.helpers.games:count_up_moves"
    assert events(COUNT_UP, legal_moves=moves, events="none") != []  # it has no board


def test_cards_are_private_and_talk_is_public():
    played = game(KUHN)
    cards = {}
    for action in ("[check]", "[bet]"):
        observation = played.observe()
        cards[observation.seat] = observation.events[0][-2]
        assert len([event for event in observation.events if "Your card" in event]) == 1
        played.step(action)
    assert cards[0] != cards[1] and set(cards) == {0, 1}
    played = game("SimpleNegotiation-v0")
    played.step("Good wheat! [Offer: 1 Wheat -> 1 Wood]")
    events = played.observe().events
    assert events[0] == "Player 0: Good wheat! [Offer: 1 Wheat -> 1 Wood]"
    assert "made the following offer" in events[1] and len(events) == 2


def test_outdated_board_is_not_shown_last():
    played = game("IteratedPrisonersDilemma-v0")
    for action in ("hello", "hi there", "[cooperate]", "[defect]"):
        played.observe()
        played.step(action)
    observation = played.observe()
    assert observation.board == ""
    assert observation.events[:2] == ["You: hello", "Player 1: hi there"]
    assert observation.events[-1] == "--- Starting Round 2 ---"


def test_undescribed_bare_moves_stay_in_events():
    """Events keep a bare move, such as one-token talk without a board or a guess before a hint."""
    played = game("IteratedPrisonersDilemma-v0")
    for action in ("[peace]", "[war]", "[cooperate]", "[defect]"):
        played.observe()
        played.step(action)
    assert played.observe().events[:2] == ["You: [peace]", "Player 1: [war]"]
    played = game("GuessTheNumber-v0", 1, args={"min_number": 1, "max_number": 2000})
    for action in ("[1]", "[2000]"):
        played.step(action)
    hints = ["The target number is higher.", "The target number is lower."]
    assert played.observe().events == ["You: [1]", hints[0], "You: [2000]", hints[1]]


def test_secret_mafia_ends_and_keeps_its_turn_order():
    played = game("SecretMafia-v0", 6, invalid_moves=InvalidMovesConfig(allowed=2), max_turns=300)
    rng, order = random.Random(0), []
    while not played.done:
        order.append(played.observe().seat)
        alive = [seat for seat in range(6) if seat != played.seat]
        played.step(f"I say [{rng.choice(alive)}]")
    assert played.forfeit is not None or set(played.outcomes) == {1.0, -1.0}
    # Nights: the mafia (0, 1), the doctor (2), the detective (3). Days: any order.
    assert set(order[:2]) == {0, 1} and order[2:4] == [2, 3]
    assert order[4:10] != sorted(order[4:10])


def test_first_invalid_move_forfeits_by_default():
    policy = InvalidMovesConfig(forfeit_reward=-1.5, others_reward=0.5)
    for env, seats in (("TicTacToe-v0", 2), ("LiarsDice-v0", 3), ("TowerOfHanoi-v0", 1)):
        played = game(env, seats, invalid_moves=policy)
        assert played.step("nothing of the kind") == (True, True)
        assert played.forfeit == 0 and not played.truncated
        assert played.outcomes == [-1.5, *[0.5] * (seats - 1)]
        assert played.reason.startswith("Player 0 forfeits by an invalid move: ")


@every_row(
    "env, scale, worst",
    ("TicTacToe-v0", None, -1),
    (LEDUC, None, -1),
    (LEDUC, 3.25, -4),
    (LEDUC, 26, -1),
)
def test_forfeit_is_no_better_than_the_worst_end(env, scale, worst):
    """Leduc's greatest loss is 13 chips."""
    played = game(env, 2, payoff_scale=scale)
    played.step("nothing of the kind")
    assert played.outcomes == [worst, 0.0]


@every_row("env, seats", ("TicTacToe-v0", 2), ("Poker-v0", 3), (COUNT_UP, 3))
def test_allowed_retries_show_notice_and_count_consecutively(env, seats):
    played = game(env, seats, invalid_moves=InvalidMovesConfig(allowed=2))
    seat = played.seat
    for _ in range(2):
        assert played.step("garbage") == (False, True)
        observation = played.observe()
        assert observation.seat == seat
        assert "invalid" in observation.notice and "garbage" not in str(observation.events)
    action = {"TicTacToe-v0": "[4]", "Poker-v0": "[Call]"}.get(env, "[1]")
    assert not played.step(action).invalid
    after = played.observe()
    assert after.seat != seat and after.notice == "" and "garbage" not in str(after)
    for allowed in (True, True, False):
        step = played.step("garbage")
        assert step.invalid and step.done is not allowed
    assert played.forfeit == after.seat


def test_consecutive_invalid_moves_or_turn_limit_end_game():
    played = game(COUNT_UP, 1, invalid_moves=InvalidMovesConfig(allowed=1))
    for action in ("garbage", "[1]", "garbage", "[1]", "garbage", "[1]", "garbage"):
        assert not played.step(action).done
    assert played.step("garbage").done and played.forfeit == 0
    for env, seats in (("PublicGoodsGame-v0", 3), ("Poker-v0", 2)):
        policy = InvalidMovesConfig(allowed=10_000)
        played = game(env, seats, max_turns=40, invalid_moves=policy)
        while not played.done:
            played.observe()
            played.step("garbage")
        assert (played.turns, played.truncated, played.forfeit) == (40, True, None)
        assert played.outcomes == [0.0] * seats


def test_env_rewards_are_assigned_by_seat():
    played = game(COUNT_UP, 3)
    for action in ("[3]", "[3]", "[3]", "[1]"):
        played.step(action)
    assert played.done and played.outcomes == [5.0, 0.0, 0.0] and played.reason == "counted"
    alone = game(COUNT_UP, 1)
    for _ in range(4):
        alone.step("[3]")
    assert alone.outcomes == [5.0]


def test_kuhn_defects_of_textarena_are_fixed_in_catalog():
    """TextArena's bets move no chips; tests/solving/test_exploit.py tests our game's value."""
    env = ta.make("KuhnPoker-v0-raw", max_rounds=1)
    env.reset(num_players=2, seed=0)
    before = dict(env.state.game_state["player_chips"])
    env.step("[bet]")
    assert env.state.game_state["player_chips"] == before
    played = game(KUHN)
    play_randomly(played, 0)
    assert played.env.raw.state.game_state["current_round"] == 3
    assert sum(played.env.raw.state.game_state["player_chips"].values()) == 0


# Payoffs


def pays_squares(env):
    return [4.0, 1.0]


def pays_one(env):
    return [4.0]


def pays_nothing_finite(env):
    return [float("inf"), 0.0]


def counted_up(**changes):
    played = game(COUNT_UP, seats=2, **changes)
    while not played.done:
        played.step("[3]")
    return played


def test_custom_payoffs_are_divided_by_constant_scale():
    played = counted_up(payoffs=f"{__name__}:pays_squares", payoff_scale=8.0)
    assert (played.payoffs, played.outcomes) == ([4.0, 1.0], [0.5, 0.125])
    assert counted_up(payoff_scale=10.0).outcomes == [0.0, 0.5]


@every_row("target", "pays_one", "pays_nothing_finite")
def test_payoffs_must_be_one_finite_number_per_seat(target):
    with pytest.raises(ValueError, match="expected one number per seat"):
        counted_up(payoffs=f"{__name__}:{target}")


@every_row(
    "actions, chips",
    (["[bet]", "[fold]"], 1),
    (["[bet]", "[call]"], 2),
    (["[check]", "[check]"], 1),
)
def test_kuhn_poker_pays_chips(actions, chips):
    played = game(KUHN, args={"max_rounds": 1})
    opener = played.seat
    cards = played.env.raw.state.game_state["player_cards"]
    for action in actions:
        played.step(action)
    won = opener if "[fold]" in actions or cards[opener] > cards[1 - opener] else 1 - opener
    assert (played.payoffs[won], played.payoffs[1 - won]) == (chips, -chips)
    assert played.outcomes == [payoff / 2 for payoff in played.payoffs]


def test_payoffs_beyond_scale_are_rejected():
    played = game(KUHN, args={"max_rounds": 1})
    played.env.raw.state.game_state["player_chips"][0] += 4
    with pytest.raises(ValueError, match="exceeds its scale of 2"):
        for action in ("[bet]", "[fold]"):
            played.step(action)


class Drawn(ta.Env):
    """Shows a board whose first row is indented, after an empty line."""

    board = "\n \n    A B\n1   . .\n\n"

    def reset(self, num_players, seed=None):
        self.state = ta.SinglePlayerState(num_players=num_players, seed=seed, max_turns=5)
        self.state.reset(game_state={}, player_prompt_function=lambda **_: "Look.")
        self.state.add_observation(self.board, observation_type=ta.ObservationType.GAME_BOARD)

    def step(self, action):
        return self.state.step()


def test_board_rows_are_aligned():
    assert game(f"{__name__}:Drawn", 1).observe().board == "    A B\n1   . ."
    rows = game("Breakthrough-v0-small").observe().board.splitlines()
    assert len({row.index("|") for row in rows[:-1]}) == 1


class Spoilt(CountUp):
    """Pays NaN to seat 0."""

    def step(self, action):
        self.state.rewards = {0: float("nan"), 1: 1.0}
        return True, {}


def test_nonfinite_env_rewards_are_rejected():
    game = Game(GameConfig(env=f"{__name__}:Spoilt"), seed=0)
    with pytest.raises(ValueError, match=r"expected one number per seat"):
        game.step("[1]")
