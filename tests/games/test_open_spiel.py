"""Test OpenSpiel's games as envs: play and exploitability match OpenSpiel's."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pyspiel = pytest.importorskip("pyspiel", reason="pip install -e '.[open_spiel]'")
import open_spiel.python.games  # noqa: E402, F401 - registers the Python games
from open_spiel.python.algorithms import expected_game_score, exploitability  # noqa: E402
from open_spiel.python.games import kuhn_poker as python_kuhn  # noqa: E402
from open_spiel.python.policy import UniformRandomPolicy  # noqa: E402

from tests.helpers.bridged import assert_refused, assert_undisturbed, learned_from  # noqa: E402
from tests.helpers.loop import KUHN_RUN  # noqa: E402
from tests.helpers.rows import every_row  # noqa: E402
from tests.helpers.tables import table  # noqa: E402
from tests.helpers.trees import uniform  # noqa: E402
from unstable.config import ConfigError, GameConfig  # noqa: E402
from unstable.games.bridges.open_spiel import load_game, names_of  # noqa: E402
from unstable.games.check import check_game, settled  # noqa: E402
from unstable.games.game import Game  # noqa: E402
from unstable.games.services import can_be_solved, game_questions  # noqa: E402
from unstable.solving.best_response import assess  # noqa: E402
from unstable.solving.tree import grow  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "open_spiel.md"
SHORT = ["kuhn_poker", "liars_dice", "goofspiel", "tic_tac_toe", "blackjack", "pig", "hanabi"]


_SOLVED = """
kuhn_poker kuhn_poker(players=3) liars_dice(dice_sides=3) python_kuhn_poker tiny_hanabi
goofspiel(num_cards=3,imp_info=True,points_order=random) goofspiel(num_cards=3)
dark_hex(board_size=2) nim(pile_sizes=1;2;3) hex(board_size=2) matrix_pd matching_pennies_3p
trade_comm(num_items=2) go(board_size=2,max_game_length=8) dots_and_boxes(num_rows=1,num_cols=2)
"""
SOLVED = _SOLVED.split()
_SOLVED_SLOWLY = """
leduc_poker liars_dice(dice_sides=4) goofspiel(num_cards=4,imp_info=True,points_order=descending)
dark_hex_ir(board_size=2) connect_four(rows=3,columns=3,x_in_row=3) blotto first_sealed_auction
first_sealed_auction(players=3,max_value=3) lewis_signaling tiny_bridge_2p coordinated_mp sheriff
battleship(board_width=2,board_height=2,ship_sizes=[1],ship_values=[1],num_shots=2,\
allow_repeated_shots=False) clobber(rows=2,columns=3) havannah(board_size=2)
"""
SOLVED_SLOWLY = _SOLVED_SLOWLY.split()
_SOLVED_CORE = """
leduc_poker connect_four(rows=3,columns=3,x_in_row=3) first_sealed_auction(players=3,max_value=3)
blotto
"""
SOLVED_CORE = _SOLVED_CORE.split()
"""Chance and hidden cards, perfect information, three seats, simultaneous moves."""
SOLVED_BY_POSITIONS = "dots_and_boxes"

"""Has 5,667 positions, but half a billion histories, which OpenSpiel's algorithms enumerate."""


def config_of(name: str, **changes: Any) -> GameConfig:
    seats = pyspiel.load_game(name).num_players()
    chosen = {"env": f"open_spiel:{name}", "seats": seats, "max_turns": 10_000, **changes}
    return GameConfig.model_validate(chosen)


def check_solved(name: str) -> None:
    """Random play is worth as much to each seat, and each best response to it."""
    game, tree = load_game(name), grow(config_of(name), 1_000_000)
    found, policy = assess(tree, uniform(tree), forfeits=False), UniformRandomPolicy(game)
    seats = game.num_players()
    values = expected_game_score.policy_value(game.new_initial_state(), [policy] * seats)
    expected = exploitability.nash_conv(game, policy, return_only_nash_conv=False)
    assert found.values == pytest.approx([*values], abs=1e-9)
    improved = [best - value for best, value in zip(found.best, found.values, strict=True)]
    assert improved == pytest.approx([*expected.player_improvements], abs=1e-9)


def worth(state: Any, best: bool, seen: dict[tuple[str, int], float]) -> float:
    """Return random play's value to seat 0; with `best`, where it plays best against the other."""
    if state.is_terminal():
        return float(state.returns()[0])
    key = str(state), state.current_player()
    if key not in seen:
        after = [worth(state.child(action), best, seen) for action in state.legal_actions()]
        chosen = best and state.current_player() == 0
        seen[key] = max(after) if chosen else sum(after) / len(after)
    return seen[key]


def check_played(name: str, seed: int) -> None:
    """Compare a game of random moves with OpenSpiel's state, move by move."""
    game = Game(config_of(name), seed)
    env: Any = game.env
    rng = random.Random(seed)
    while not game.done:
        state = env.state
        assert env.mover == state.current_player() == game.observe().seat
        numbers, names = state.legal_actions(), game.legal_moves()
        assert len(set(names)) == len(names) == len(numbers)
        assert not any(mark in each for each in names for mark in "[]\n")
        place = rng.randrange(len(names))
        after = state.clone()
        after.apply_action(numbers[place])
        assert not game.step(names[place]).invalid
        if not after.is_chance_node():
            assert str(env.state) == str(after)
    assert env.state.is_terminal()
    assert game.payoffs == [*env.state.returns()]
    assert all(-1 <= outcome <= 1 for outcome in game.outcomes)


@pytest.mark.parametrize("name", SHORT)
def test_seed_determines_game(name: str) -> None:
    chance = name not in ("goofspiel", "tic_tac_toe")
    assert_undisturbed(config_of(name), range(8), chance=chance)


@every_row(
    "env, seats, said",
    ("kuhn_pokr", 2, "kuhn_pokr': unknown OpenSpiel game; did you m"),
    ("kuhn_poker(cards=4)", 2, "OpenSpiel rejects it ("),
    ("hex(board_size=0)", 2, "OpenSpiel rejects it (IndexError: "),
    ("universal_poker(betting=nolimit,numPlayers=0)", 2, "rejects it (its process crashed with"),
    ("no_such_module:kuhn_poker", 2, "cannot import no_such_module (No module na"),
    ("mfg_garnet", 1, "mean field games are unsupported; choose another game"),
    ("kuhn_poker", 3, "games.0.seats = 3: kuhn_poker() has 2 seats; use a numbe"),
    ("python_iterated_prisoners_dilemma", 2, "no observation text; set games.N.ar"),
    ("crossword", 1, "This game uses action structs only"),
)
def test_unplayable_config_is_rejected_in_one_line(env: str, seats: int, said: str) -> None:
    assert_refused(said, env=f"open_spiel:{env}", seats=seats)


@pytest.mark.parametrize("name", SHORT)
def test_play_matches_open_spiel(name: str) -> None:

    for seed in range(3):
        check_played(name, seed)


def test_transpositions_are_solved_once() -> None:
    tree = grow(config_of(SOLVED_BY_POSITIONS))
    found = assess(tree, uniform(tree), forfeits=False)
    start = load_game(SOLVED_BY_POSITIONS).new_initial_state()
    assert found.values[0] == pytest.approx(worth(start, best=False, seen={}), abs=1e-9)
    assert found.best[0] == pytest.approx(worth(start, best=True, seen={}), abs=1e-9)


@pytest.mark.parametrize("name", SOLVED)
def test_exploitability_of_random_play_matches_open_spiel(name: str) -> None:
    check_solved(name)


@pytest.mark.parametrize("name", table("open_spiel", SOLVED_SLOWLY, SOLVED_CORE))
def test_exploitability_in_larger_games_matches_open_spiel(name: str) -> None:
    check_solved(name)


def test_simultaneous_moves_are_hidden() -> None:
    for name in ("goofspiel(num_cards=4)", "matrix_rps", "oshi_zumo", "blotto"):
        seen = set()
        for move in range(3):
            game = Game(config_of(name), 0)
            game.step(game.legal_moves()[move])
            seen.add(game.observe().board)
        assert len(seen) == 1


def test_invalid_action_is_rejected_with_notice() -> None:
    game = Game(config_of("kuhn_poker", invalid_moves={"allowed": 1}), 0)
    before = game.observe()
    assert game.step("Raise").invalid
    after = game.observe()
    assert after.notice == "Raise is no legal action." and after.board == before.board
    assert not game.step(" Bet ").invalid


def test_equal_action_names_get_numbers() -> None:
    class State:
        def action_to_string(self, player: int, number: int) -> str:
            return ["[P0] take", "[P1]take", "", "a\n b"][number]

    assert names_of(State(), 0, range(4)) == ["take #0", "take #1", "#2", "a b"]


def test_user_registered_game_plays(tmp_path, monkeypatch):
    source = Path(python_kuhn.__file__).read_text(encoding="utf-8")
    own = source.replace("python_kuhn_poker", "my_kuhn").replace("Python Kuhn", "My Kuhn")
    (tmp_path / "my_games.py").write_text(own, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    config = GameConfig(env="open_spiel:my_games:my_kuhn")
    check_game(config)
    assert "Pass" in " ".join(Game(config, 0).legal_moves())


def test_python_games_load_without_user_import() -> None:
    """Check in a new process, which has not imported them."""
    code = (
        "from unstable.config import GameConfig\nfrom unstable.games.check import check_game\n"
        "check_game(GameConfig(env='open_spiel:python_kuhn_poker'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def dice(state: Any, player: int) -> str:
    return f"Your die, and the bids: {state.information_state_string(player)}"


def test_custom_text_and_rules_replace_defaults() -> None:
    args = {"text": f"{__name__}:dice", "rules": "Liar's dice."}
    observation = Game(config_of("liars_dice(dice_sides=2)", args=args), 0).observe()
    assert observation.board.startswith("Your die, and the bids: ")
    assert observation.rules.startswith("Liar's dice. You are player 0.")
    check = grow(config_of("liars_dice(dice_sides=2)", args=args))
    assert check.nodes == grow(config_of("liars_dice(dice_sides=2)")).nodes


def history(state: Any, player: int) -> str:
    return f"Until now: {state.history_str()}"


def test_textless_games_need_custom_text_and_large_are_not_grown() -> None:
    name = "python_iterated_prisoners_dilemma"
    game = Game(config_of(name, args={"text": f"{__name__}:history"}), 0)
    while not game.done:
        assert game.observe().board.startswith("Until now:")
        game.step(game.legal_moves()[0])
    for name in ("chess", "go", "backgammon", "leduc_poker(players=4)"):
        assert not can_be_solved(config_of(name))
    assert can_be_solved(config_of("leduc_poker"))


async def test_run_learns_and_measures_exploitability(tmp_path: Path) -> None:
    games = [{"env": "open_spiel:kuhn_poker", "prompt": "compact"}]
    rows = await learned_from(tmp_path, games=games, eval=KUHN_RUN["eval"])
    key = "exploit/open_spiel:kuhn_poker/high"

    assert all(0 < row[key] <= 2 for row in rows)


CERTAIN = ["kuhn_poker", "liars_dice", "goofspiel(num_cards=4)", "connect_four(rows=4,columns=4)"]


@pytest.mark.parametrize("name", CERTAIN)
def test_questions_use_game_positions_and_have_one_answer(name: str) -> None:
    """By kind: the marked action, whether the game ends, what it paid, numbers before and after."""
    questions = game_questions(config_of(name))
    assert len({question.brief for question in questions}) == len(questions) == 5
    positions, moves = set(), set()
    for seed in range(200):
        game, rng = Game(config_of(name), seed), random.Random(seed)
        while not game.done:
            positions.add(game.observe().position)
            moves.update(game.legal_moves())
            game.step(rng.choice(game.legal_moves()))
    for number, question in enumerate(questions):
        rng, answers = random.Random(0), dict[str, str]()
        for _ in range(300):
            asked, (answer,) = question.draw(rng)
            assert answers.setdefault(asked, answer) == answer
            if number == 0:
                assert asked.endswith(f" ! {answer}") and answer in moves
            if number != 2 and len(positions) < 100:
                assert re.split(" [!?] ", asked)[0] in positions
        assert len(set(answers.values())) > 1


def test_questions_reveal_no_hidden_information() -> None:
    """A call at Liar's dice ends the game; who wins depends on the other's die."""
    end = game_questions(config_of("liars_dice"))[1]
    assert {end.draw(random.Random(seed))[1][0] for seed in range(300)} == {"on", "over"}
    open_end = game_questions(config_of("tic_tac_toe"))[1]
    assert {open_end.draw(random.Random(seed))[1][0] for seed in range(300)} == {"on", "0", "1"}


def names() -> list[str]:
    return [kind.short_name for kind in pyspiel.registered_games() if kind.default_loadable]


PLAYED_CORE = {
    "tic_tac_toe": "every seat sees all",
    "chess": "long, with many moves",
    "backgammon": "chance that every seat sees",
    "2048": "one seat, chance",
    "blackjack": "one seat, hidden",
    "kuhn_poker": "chance, hidden",
    "universal_poker": "parameters by a text",
    "phantom_ttt": "hidden without chance",
    "hanabi": "cooperative",
    "hearts": "four seats",
    "social_deduction": "six seats",
    "tarok": "chance within",
    "goofspiel": "simultaneous, chance",
    "matching_pennies_3p": "simultaneous, three seats",
    "markov_soccer": "simultaneous, long, chance",
    "sheriff": "offers, many moves",
    "python_kuhn_poker": "written in Python",
    "python_dynamic_routing": "written in Python, simultaneous",
    "crossword": "rejected: action structs",
    "mfg_garnet": "rejected: a mean field game",
    "python_iterated_prisoners_dilemma": "rejected: no text",
}
"""One game per feature of the bridge."""


@pytest.mark.parametrize("name", table("open_spiel", names(), PLAYED_CORE))
def test_every_game_plays_or_is_rejected_as_documented(name: str) -> None:
    refused = dict(re.findall(r"^\| `(\w+)` \| rejected: (.+) \|$", PAGE.read_text("utf-8"), re.M))
    try:
        check_game(settled(config_of(name)))
    except ConfigError as error:
        assert refused.get(name, "not on the page") in str(error)
        return
    assert name not in refused
    check_played(name, seed=1)
