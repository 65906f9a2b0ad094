"""Test GEM's games as single-seat envs, move by move against GEM."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.bridged import assert_refused, learned_from
from tests.helpers.rows import every_row
from unstable.config import ConfigError, GameConfig
from unstable.games.check import check_game, settled
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves, programs
from unstable.types.seeds import derive_seed

NUMBER = "game:GuessTheNumber-v0-easy"
gem = pytest.importorskip(
    "gem", reason="gem-llm requires another release of NLTK: see docs/bridges.md"
)


def config_of(name: str, **changes: Any) -> GameConfig:
    chosen = {"env": f"gem:{name}", "seats": 1, "max_turns": 200, **changes}
    return GameConfig.model_validate(chosen)


PLAYED = [
    (NUMBER, [str(number) for number in range(1, 11)]),
    ("game:GuessTheNumber-v0-random", [str(number) for number in range(1, 40)]),
    ("game:Mastermind-v0-easy", [f"{a} {b}" for a in range(1, 7) for b in range(1, 7) if a != b]),
    ("game:TowerofHanoi-v0-easy", ["A C", "A B", "C B", "B A", "B C", "C A"]),
    ("game:FifteenPuzzle-v0-easy", ["up", "down", "left", "right"]),
    ("game:Game2048-v0-easy", ["up", "down", "left", "right"]),
    ("game:Minesweeper-v0-easy", [f"reveal {a} {b}" for a in range(5) for b in range(5)]),
    ("game:Hangman-v0-easy", [*"ETAOINSRHLDCUMFPGWYBVKXJQZ"]),
    ("game:Sokoban-v0-easy", ["up", "down", "left", "right"]),
    ("rg:chain_sum", ["100", "-3"]),
]


@every_row("name, answers", *PLAYED)
def test_play_matches_gem(name: str, answers: list[str]) -> None:
    for seed in range(3):
        game, rng = Game(config_of(name), seed), random.Random(seed)
        chance, before = random.getstate(), game._chance
        twin = Game(config_of(name), seed + 1)._chance  # separate, for the library's game
        with twin:
            env = gem.make(name)
            first, _ = env.reset(seed=derive_seed(seed, "env") % 2**31)
        assert game.observe().rules == first.strip()
        said, total = list[str](), 0.0
        while not game.done:
            assert game.observe().events == said
            answer = rng.choice(answers)
            with twin:
                seen, reward, terminated, truncated, _ = env.step(rf"\boxed{{{answer}}}")
            total += reward
            said += [f"You: {answer}", seen.strip()]
            result = game.step(answer)
            assert not result.invalid and result.done == (terminated or truncated)
        assert game.payoffs == pytest.approx([total])
        assert before is game._chance and random.getstate() == chance


def test_seed_determines_game_and_games_are_independent() -> None:
    def target(game: Game) -> int:
        env: Any = game.env
        return env.env.game_number

    alone = [target(Game(config_of(NUMBER), seed)) for seed in range(20)]
    games = [Game(config_of(NUMBER), seed) for seed in range(20)]
    assert [target(game) for game in games] == alone and len({*alone}) > 4


def test_actions_are_bare_or_boxed_and_games_judge_errors() -> None:
    game = Game(config_of(NUMBER), 0)
    game.step(r"I think it is \boxed{11}")
    assert "which is outside the range" in game.observe().events[-1]
    assert not game.step("ten").invalid
    assert game.done and game.payoffs == [-0.1] and game.forfeit is None
    assert "did not provide a valid guess" in game.reason
    config = settled(config_of(NUMBER))
    assert config.action_form == "bare" and not lists_legal_moves(config)
    check_game(config)
    assert programs(config) == []
    own = settled(config_of(NUMBER, legal_moves=f"{__name__}:guesses"))
    check_game(own)
    assert Game(own, 0).legal_moves() == ["1", "2", "3"]


def guesses(env: Any) -> list[str]:
    return [str(number) for number in range(1, 4)]


def seen(env: Any, seat: int, observation: str) -> str:
    return f"{env.turn_count}: {observation.split()[-1]}"


def test_custom_text_replaces_default_and_copy_is_independent() -> None:
    args = {"text": f"{__name__}:seen", "rules": "Guess a number to 30.", "max_number": 30}
    game = Game(config_of(NUMBER, args=args), 0)
    game.step("30")
    assert game.observe().rules == "Guess a number to 30."
    assert game.observe().events == ["You: 30", "1: 30."]
    game = Game(config_of("game:Mastermind-v0-easy"), 0)
    game.step("1 2")
    before = game.observe()
    copied = game.copied()
    copied.step("3 4")
    assert game.observe() == before and len(copied.observe().events) == 4


def test_unplayable_config_is_rejected_in_one_line() -> None:
    env = "gem:game:GuessTheNumbr-v0-easy"
    assert_refused("unknown GEM game; did you mean 'game:Gue", env=env, seats=1)
    said = "games.0.seats = 2: game:GuessTheNumber-v0-easy of"
    assert_refused(said, env=f"gem:{NUMBER}", seats=2)


async def test_run_learns_from_game(tmp_path: Path) -> None:
    games = [{"env": f"gem:{NUMBER}", "seats": 1, "prompt": "answer"}]
    await learned_from(tmp_path, games=games)


REFUSED = {"game:FifteenPuzzle-v0-random", "game:Crosswords-v0-random", "rg:composite"}


@pytest.mark.slow
def test_every_game_without_data_plays_or_is_rejected() -> None:
    from gem.envs.registration import ENV_REGISTRY

    refused = dict[str, str]()
    for name in [each for each in ENV_REGISTRY if each.startswith(("game:", "rg:"))]:
        try:
            config = settled(config_of(name))
            check_game(config)
        except ConfigError as error:
            refused[name] = str(error)
            continue
        game = Game(config, 1, trusted=True)  # errors forfeit, as in a run
        while not game.done:
            game.step(random.Random(game.turns).choice(["1", "up", "A C", "reveal 1 1", "E"]))
        assert not game.truncated
    assert not any("\n" in line for line in refused.values())
    assert {*refused} == REFUSED, refused
