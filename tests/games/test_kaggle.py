"""Test the games of Kaggle's Game Arena, move by move against Kaggle's own environments."""

import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

kaggle_environments = pytest.importorskip(
    "kaggle_environments", reason="pip install --no-deps kaggle-environments: see docs/games.md"
)
pytest.importorskip("pyspiel", reason="pip install -e '.[kaggle]'")

from tests.helpers.bridged import (  # noqa: E402
    assert_copy_goes_its_own_way,
    assert_ends_or_is_refused,
    assert_refused,
    assert_undisturbed,
)
from tests.helpers.rows import every_row  # noqa: E402
from tests.helpers.trees import uniform  # noqa: E402
from unstable.config import GameConfig  # noqa: E402
from unstable.contrib.environments.kaggle import environment_class  # noqa: E402
from unstable.games.check import settled  # noqa: E402
from unstable.games.game import Game  # noqa: E402
from unstable.games.services import prompt_style  # noqa: E402
from unstable.prompts import Action  # noqa: E402
from unstable.solving.best_response import assess  # noqa: E402
from unstable.solving.tree import grow  # noqa: E402
from unstable.types.seeds import derive_seed  # noqa: E402

GAMES = Path(kaggle_environments.__file__).parent / "envs/open_spiel_env/games"
NAMES = sorted(path.parent.name for path in GAMES.glob("*/harness.py"))
PAGE = Path(__file__).parent.parent.parent / "docs/games.md"


def config_of(name: str, **changes: Any) -> GameConfig:
    seats = environment_class(name).spiel.num_players()
    chosen = {"env": f"kaggle:{name}", "seats": seats, "max_turns": 10_000, **changes}
    return settled(GameConfig.model_validate(chosen))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_game_of_every_harness_plays_to_its_end_by_its_seed(name: str) -> None:
    assert_ends_or_is_refused(config_of(name), ())
    assert_undisturbed(config_of(name, max_turns=100), range(2), chance=False)


def test_docs_list_every_game() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Kaggle Game Arena\n")[2]
    assert len(NAMES) > 30
    assert [name for name in NAMES if f"`{name}`" not in section.partition("\n## ")[0]] == []


@pytest.mark.parametrize(
    "name",
    [
        *("connect_four", "dark_hex", "oshi_zumo", "python_ant_foraging", "hanabi_arena"),
        pytest.param("chess", marks=pytest.mark.slow),
    ],
)
def test_play_matches_kaggle(name: str) -> None:
    """Prompts, legal moves and payoffs are those of Kaggle's environment and harness."""
    game, rng = Game(config_of(name), 3), random.Random(0)
    harness = environment_class(name).harness
    seed = derive_seed(3, "env") % 2**31
    env = kaggle_environments.make(f"open_spiel_{name}", configuration={"seed": seed})
    said: list[list[str]] = [[] for _ in env.state]
    env.step([{"submission": -1}] * len(said))  # sets the observations
    while not game.done:
        chosen = [-1] * len(said)
        for seat in [seat for seat, each in enumerate(env.state) if each.status == "ACTIVE"]:
            seen = env.state[seat].observation
            moves = harness.get_legal_moves(seen)
            assert game.seat == seat and game.legal_moves() == [*moves.values()]
            assert game.observe().board == harness.generate_prompt(seen, said[seat])
            chosen[seat] = rng.choice([*moves])
            said[seat].append(moves[chosen[seat]])
            assert not game.step(moves[chosen[seat]]).invalid
        env.step([{"submission": number} for number in chosen])
    assert [each.reward for each in env.state] == game.payoffs


@every_row("name", "bargaining", "coin_game", "gin_rummy", "hanabi_arena", "negotiation")
def test_seed_determines_game_and_games_are_independent(name: str) -> None:
    assert_undisturbed(config_of(name, max_turns=12), range(3))


@every_row("name", "connect_four", "dots_and_boxes", "oshi_zumo", "coin_game_arena")
def test_copy_is_independent(name: str) -> None:
    assert_copy_goes_its_own_way(config_of(name))


@every_row(
    "name, answer, move",
    ("connect_four", "The centre is best, not 2.\nFinal Answer: 3", "x3"),
    ("connect_four", "x3", "x3"),
    ("chess", "I open the game. Final Answer: e4", "e4"),
    ("clobber", 'So:\n```json\n{"move": "a5b5"}\n```', "a5b5"),
    ("oshi_zumo", 'So:\n```json\n{"bid": 7}\n```', "[P0]Bid: 7"),
)
def test_answer_is_read_by_the_harness(name: str, answer: str, move: str) -> None:
    game, other = Game(config_of(name), 0), Game(config_of(name), 0)
    assert not game.step(answer).invalid and not other.step(move).invalid
    assert game.observe() == other.observe()


@every_row(
    "answer, why, says",
    ("no idea", "no move was found in the answer", "could not be parsed"),
    ("Final Answer: 9", "9 is no legal move", "concluded with:\nFinal Answer: 9"),
)
def test_second_refused_answer_forfeits(answer: str, why: str, says: str) -> None:
    game = Game(config_of("connect_four", invalid_moves={"allowed": 1}), 0)
    first, legal = game.observe().board, game.legal_moves()
    assert game.step(answer).invalid and not game.done
    assert says in game.observe().board and says not in first
    assert game.seat == 0 and game.legal_moves() == legal
    assert game.step(answer) == (True, True)
    assert game.forfeit == 0 and why in game.reason and game.outcomes == [-1.0, 0.0]


def test_model_reads_the_prompt_unchanged_and_its_whole_answer_is_passed() -> None:
    config = config_of("connect_four")
    seen = Game(config, 0).observe()
    prompt, answer = seen.board, "I think.\n\nFinal Answer: [3]"
    assert "You are playing as player x." in prompt and "Final Answer: <column_index>" in prompt
    style = prompt_style(config)
    assert style.messages(style.render(seen)) == [{"role": "user", "content": prompt}]
    assert style.read_action(answer) == Action(answer, True)
    asked = prompt_style(config_of("connect_four", prompt="answer")).render(seen)
    assert asked.startswith(prompt) and asked.endswith("only your action, nothing else.")


def test_legal_moves_are_listed_only_on_request() -> None:
    own = Game(config_of("connect_four"), 0).observe().board
    listed = Game(config_of("connect_four", args={"list_moves": True}), 0).observe().board
    assert listed == f"{own}\n\nLegal moves: x0 | x1 | x2 | x3 | x4 | x5 | x6"


@pytest.mark.parametrize(
    "name",
    [
        "dark_hex(num_rows=2,num_cols=2)",
        "oshi_zumo(coins=2,size=1,horizon=2)",
        pytest.param("connect_four(rows=3,columns=3,x_in_row=3)", marks=pytest.mark.slow),
    ],
)
def test_exploitability_of_random_play_matches_open_spiel(name: str) -> None:
    trees = [grow(GameConfig(env=f"{library}:{name}")) for library in ("kaggle", "open_spiel")]
    own, other = (assess(tree, uniform(tree), forfeits=False) for tree in trees)
    assert trees[0].nodes == trees[1].nodes > 40
    assert own.exploitability == pytest.approx(other.exploitability, abs=1e-9)


def test_choices_of_a_turn_are_hidden_from_others_and_part_of_the_state() -> None:
    games = [Game(config_of("oshi_zumo"), 0) for _ in range(2)]
    for game, bid in zip(games, ("[P0]Bid: 1", "[P0]Bid: 2"), strict=True):
        game.step(bid)
    assert games[0].seat == 1 and games[0].observe() == games[1].observe()
    assert [game.whole_state() for game in games] == ["1 1", "1 2"]


def test_dealt_game_has_teams_and_keeps_a_given_seed() -> None:
    assert config_of("hanabi_arena").teams == ((0, 1), (2, 3))
    states = {Game(config_of("hanabi_arena"), seed).observe().board for seed in range(3)}
    given = {Game(config_of("hanabi_arena(seed=7)"), seed).observe().board for seed in range(3)}
    assert len(states) == 3 and len(given) == 1


@every_row(
    "name, changes, said",
    ("conect_four", {}, "games.0.env = 'kaggle:conect_four': unknown game, or one without a harn"),
    ("conect_four", {}, "did you mean 'connect_four'?"),
    ("tic_tac_toe", {}, "did you mean 'ultimate_tic_tac_toe'?"),
    ("connect_four(rows=", {}, "cannot be read (Missing closing bracket"),
    ("connect_four(rws=4)", {}, "OpenSpiel rejects it (SpielError: Unknown parameter 'rws'"),
    ("connect_four", {"seats": 3}, "games.0.seats = 3: "),
    ("connect_four", {"args": {"moves": True}}, "games.0.args = {'moves': True}: "),
)
def test_unplayable_config_is_rejected_in_one_line(
    name: str, changes: dict[str, Any], said: str
) -> None:
    assert_refused(said, **{"env": f"kaggle:{name}"} | changes)


def test_no_placeholder_is_left_in_the_process() -> None:
    environment_class("connect_four")
    assert find_spec("litellm") is not None or "litellm" not in sys.modules
    assert hasattr(kaggle_environments, "make")
