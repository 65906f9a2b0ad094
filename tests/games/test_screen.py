"""Test screening: games that fail in play are rejected in one line, other errors are ignored."""

import time
from typing import Any

import pytest
import textarena as ta
from textarena.envs.registration import ENV_REGISTRY

from tests.helpers.liars import Liars
from tests.helpers.machines import machine
from tests.helpers.mistakes import line_of, refused
from tests.helpers.rows import every_row
from unstable.commands.prepare import Resolved, show_plan
from unstable.config import GameConfig, parse
from unstable.engines.kinds import NEEDS
from unstable.games.catalog.kuhn import KuhnPoker
from unstable.games.catalog.vetted import DEFECTS, known_defect
from unstable.games.check import check_game
from unstable.games.environment import ServiceDownError
from unstable.games.game import Game
from unstable.games.screen import ignores_seed, pays_losers, screen
from unstable.games.textarena import env_class
from unstable.planning.plan import plan
from unstable.types import Observation


@every_row(
    "env, seats, words",
    ("Golf-v0", 3, "raises AttributeError"),
    ("Golf-v0", 4, "raises AttributeError"),
    ("Briscola-v0", 3, " has no legal move after "),
    ("Briscola-v0", 4, "raises AttributeError"),
    ("QuantumTicTacToe-v0", 3, "the environment does not create seat 2; "),
    ("QuantumTicTacToe-v0", 4, "the environment does not create seats 2, 3; "),
    ("SpiteAndMalice-v0", 3, "the environment does not create seat 2; "),
)
def test_wrong_seat_count_is_rejected_with_working_count(env, seats, words):
    check_game(GameConfig(env=env, seats=2))
    start = time.process_time()
    line = line_of(check_game, GameConfig(env=env, seats=seats), "games.1")
    assert line.startswith(f"games.1.seats = {seats}: in {env}, ") and words in line
    assert line.endswith("; set it to 2") and "\n" not in line
    assert time.process_time() - start < 3


class ThreeHands(ta.Env):
    """Three seats play one card each; the env does not check the number of players."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = ta.FFAMultiPlayerState(num_players=num_players, seed=seed)
        hands = {"hands": [["[1]"], ["[2]"], ["[3]"]]}
        self.state.reset(game_state=hands, player_prompt_function=lambda **_: "Play a card.")

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        hands = self.state.game_state["hands"]
        hands[self.state.current_player_id].remove(action)
        if not any(hands):
            self.state.set_draw(reason="Over.")
        done, info = self.state.step()
        return done, info


def hand(env: ThreeHands) -> list[str]:
    return list(env.state.game_state["hands"][env.state.current_player_id])


def test_too_few_seats_are_rejected_with_working_count() -> None:
    place = {"env": f"{__name__}:ThreeHands", "legal_moves": f"{__name__}:hand"}
    check_game(GameConfig(**place, seats=3))
    refused(r"games\.seats = 2: .* no legal move .*; set it to 3$", check_game, GameConfig(**place))


RAISED = {"touchy": KeyError, "down": ServiceDownError}


class Counting(ta.Env):
    """Sixty moves; `how` selects a fault."""

    def __init__(self, how: str = "") -> None:
        self.how = how

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = ta.FFAMultiPlayerState(num_players=num_players, seed=seed)
        self.state.reset(game_state={"count": 0}, player_prompt_function=self._rules)
        print("a new game")

    def _rules(self, player_id: int, game_state: dict[str, Any]) -> str:
        return "Say [go]."

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if self.how in RAISED and action != "[go]":
            raise RAISED[self.how](action)
        if self.how == "slow":
            time.sleep(0.2)
        if action != "[go]":
            self.state.set_invalid_move(reason="say [go]")
            return self.state.step()
        self.state.game_state["count"] += 1
        if self.how == "broken" and self.state.game_state["count"] == 3:
            raise ValueError("cannot\ncount to three")
        if self.state.game_state["count"] == 60:
            self.state.set_winners(player_ids=[0], reason="sixty")
        return self.state.step(rotate_player=self.how != "alone")


def go(env: Counting) -> list[str]:
    return ["[go]"]


def config(how: str, listed: bool, seats: int = 2) -> GameConfig:
    moves = f"{__name__}:go" if listed else None
    args = {"how": how}
    return GameConfig(env=f"{__name__}:Counting", args=args, seats=seats, legal_moves=moves)


@every_row("listed", True, False)
@every_row("how", "", "touchy")
def test_errors_at_random_actions_are_not_faults(how: str, listed: bool) -> None:
    assert screen(config(how, listed)) is None
    said = line_of(check_game, config("down", False))
    assert "a service that the game calls does not answer (ServiceDownError" in said
    assert said.endswith("; start the service, or export its key")


@every_row("listed, what", (True, "the legal move [go]"), (False, "any action"))
def test_game_that_raises_midway_is_rejected(
    listed: bool, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unstable.games.screen.SECONDS", 30.0)  # busy cores
    said = line_of(check_game, config("broken", listed))
    fault = f"{what} of seat 0 after "
    assert f": {fault}" in said
    assert "raises ValueError cannot count to three; fix the environment" in said


@every_row("listed", True, False)
def test_seat_that_never_moves_is_rejected(listed: bool) -> None:
    line = r"seats = 2: .*, seat 1 never moved in \d+ games; set it to 1"
    refused(line, check_game, config("alone", listed))


def test_screening_is_time_limited_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    check_game(config("slow", listed=True))
    assert time.monotonic() - start < 10
    check_game(config("", listed=True))
    assert capsys.readouterr().out == ""


def test_common_games_are_screened_quickly() -> None:
    start = time.process_time()
    for env in ("TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "SimpleTak-v0"):
        check_game(GameConfig(env=env))
    assert time.process_time() - start < 6


def test_textarena_errors_at_illegal_moves_forfeit() -> None:
    game = Game(GameConfig(env="Stratego-v0"), seed=0)
    game.observe()
    step = game.step("[E2 F2]")  # from a lake
    assert step.done and game.forfeit == 0 and game.raised
    check_game(GameConfig(env="Countdown-v0", seats=1))


# Known defects


def test_known_defects_apply_only_to_textarena_originals() -> None:
    targets = {str(spec.entry_point).rpartition(":")[2] for spec in ENV_REGISTRY.values()}
    assert set(DEFECTS) <= targets
    assert "no chips" in (known_defect(GameConfig(env="KuhnPoker-v0")) or "")
    ours = GameConfig(env="unstable.games.catalog.kuhn:KuhnPoker")
    assert issubclass(env_class(ours), env_class(GameConfig(env="KuhnPoker-v0")))
    assert env_class(ours) is KuhnPoker and known_defect(ours) is None
    assert known_defect(GameConfig(env="TicTacToe-v0")) is None


def test_known_defect_is_logged_in_one_line_at_start(capsys: pytest.CaptureFixture[str]) -> None:
    games = [{"env": "KuhnPoker-v0"}, {"env": "TicTacToe-v0"}]
    config, here = parse({"games": games}), machine()
    show_plan(Resolved(config, plan(config, [here], NEEDS), here))
    lines = [line for line in capsys.readouterr().err.splitlines() if ".env = " in line]
    assert len(lines) == 1 and lines[0].startswith("games.0.env = 'KuhnPoker-v0': TextArena's game")


@every_row(
    "env, remedy",
    ("TicTacToe-v1", "'TicTacToe-v0'"),
    ("TicTacToe-v1-mdp", "'TicTacToe-v0'"),
    ("ConnectFour-v1-blind-mdp", "'ConnectFour-v0-blind'"),
    ("ConnectFour-v1-wide", "'ConnectFour-v0'"),
    ("Chess-v2-long", "'Chess-v0-long'"),
    ("Nope-v1", "an id that ends in -v0"),
)
def test_ids_of_textarena_1_are_rejected_with_the_installed_id(env: str, remedy: str) -> None:
    line = line_of(check_game, GameConfig(env=env), "games.0")
    assert line.startswith(f"games.0.env = {env!r}: not an id of TextArena 0.7, which is installed")
    assert f"; use {remedy}, or write an Environment" in line


class Peeking(Liars):
    """Liar's dice that swaps the dice in each `observe`."""

    def observe(self) -> Observation:
        self.dice = self.dice[::-1]
        return super().observe()


class Doubling(Liars):
    """Lists its first move twice."""

    def legal_moves(self) -> list[str]:
        return super().legal_moves()[:1] + super().legal_moves()


def test_duplicate_legal_moves_are_removed() -> None:
    moves = Game(GameConfig(env=f"{__name__}:Doubling"), 0).legal_moves()
    assert moves == Game(GameConfig(env=f"{Liars.__module__}:Liars"), 0).legal_moves()


@every_row("roll, ignores", ("randint", False), ("own", False), ("numpy", False), ("system", True))
def test_ignored_seed_is_detected(roll: str, ignores: bool) -> None:
    config = GameConfig(env=f"{Liars.__module__}:Liars", args={"roll": roll})
    check_game(config)
    assert ignores_seed(config) is ignores


class Rolling(Liars):
    """Rolls the dice again in each `legal_moves`."""

    def legal_moves(self) -> list[str]:
        self.dice = [each % 6 + 1 for each in self.dice]
        return super().legal_moves()


class Alone(KuhnPoker):
    """A game of one move, which seat 0 makes."""

    def step(self, action: str) -> tuple[bool, Any]:
        done, info = super().step(action)
        if not done:
            self.state.set_winner(0, "It was the first to move.")
        return True, info


@every_row(
    "name, said",
    ("Peeking", r"two calls of observe\(\) after \d turns return"),
    ("Rolling", r"legal_moves\(\) after 0 turns changes the position"),
    ("Alone", "seat [01] never moved in 24 games"),
)
def test_defective_env_is_rejected(name: str, said: str) -> None:
    refused(said, check_game, GameConfig(env=f"{__name__}:{name}"))


def unchanged(env: Any) -> list[float]:
    return [float(env.state.rewards[seat]) for seat in range(2)]


def swapped(env: Any) -> list[float]:
    return unchanged(env)[::-1]


@every_row("payoffs, pays", ("unchanged", False), ("swapped", True))
def test_swapped_payoffs_are_detected(payoffs: str, pays: bool) -> None:
    config = GameConfig(env="Nim-v0", payoffs=f"{__name__}:{payoffs}")
    check_game(config)
    assert pays_losers(config) is pays
