"""Test whole states: Markov in exact trees, complete, and without any effect on the game."""

import math
import random
import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.coin import COIN, CoinPoker
from tests.helpers.games import LISTED, MIXED
from tests.helpers.rows import every_row
from tests.helpers.trees import KUHN, LEDUC, TIC_TAC_TOE
from unstable.config import GameConfig
from unstable.games.game import Game
from unstable.games.info import GameInfo
from unstable.games.services import tells_state
from unstable.prompts import observation_text
from unstable.solving.chance import all_chance_enumerated
from unstable.solving.tree import MOST_NODES, Memories, Node, _Grower

NIM = GameConfig(env="Nim-v0", args={"piles": [2, 1, 2]})
_SPIEL = """
kuhn_poker leduc_poker liars_dice(dice_sides=4) tic_tac_toe matrix_pd dark_hex(board_size=2)
goofspiel(num_cards=4,imp_info=True,points_order=descending) go(board_size=2,max_game_length=8)
goofspiel(num_cards=3,imp_info=True,points_order=random)
oshi_zumo(coins=3,size=1,min_bid=1,horizon=3)
"""
SPIEL = _SPIEL.split()
LIBRARIES = {
    "pyspiel": [*(f"open_spiel:{name}" for name in SPIEL), "open_spiel:negotiation"],
    "pettingzoo": ["pettingzoo:leduc_holdem_v4", "pettingzoo:rps_v2", "pettingzoo:tictactoe_v3"],
}


class Grower(_Grower):
    """Grower of a tree that also collects its decisions by whole state."""

    def __init__(self, config: GameConfig, *, merges: bool) -> None:
        super().__init__(config, MOST_NODES, math.inf)
        self.hides, self.is_open = not self.is_open, self.is_open and merges
        self.states: dict[str, list[tuple[Node, str]]] = {}
        with all_chance_enumerated(config):
            self.root = self.after(lambda: Game(config, seed=0))

    def _position(self, game: Game, memories: Memories) -> Node:
        text = "" if game.done else game.whole_state()
        node = super()._position(game, memories)
        if text:
            shown = observation_text(node.shown)
            self.states.setdefault(text, []).append((node, shown))
        return node


def assert_markov(config: GameConfig, *, merges: bool = True) -> Grower:
    """Check that equal states have equal legal moves and equal values under a random policy, which
    depends on the mover's whole memory, or on the position in games of perfect information."""
    grown = Grower(config, merges=merges)

    @cache
    def value(node: Node) -> tuple[float, ...]:
        if node.payoffs:
            return node.payoffs
        shares = node.probabilities
        if not shares:
            rng = random.Random(repr((node.information_set * grown.hides, node.key)))
            weights = [rng.random() ** 3 for _ in node.actions]
            shares = tuple(each / sum(weights) for each in weights)
        below = zip(*map(value, node.children), strict=True)
        return tuple(sum(p * v for p, v in zip(shares, seat, strict=True)) for seat in below)

    for text, found in grown.states.items():
        first = found[0][0]
        for node, _ in found:
            assert int(text.split()[0]) == node.seat
            assert set(node.actions) == set(first.actions), text
            assert value(node) == pytest.approx(value(first), abs=1e-12), text
    return grown


def assert_hidden(grown: Grower) -> None:
    """Check that seats see less than the state: no text of it, and the same in several states."""
    seen: dict[int, set[str]] = {}
    for text, found in grown.states.items():
        for node, shown in found:
            assert text not in shown and text.partition(" ")[2] not in shown
            seen.setdefault(node.information_set, set()).add(text)
    assert max(map(len, seen.values())) > 1


@every_row("config, states", (KUHN, 24), (LEDUC, 9 * 6 + 24 * 5 * 6))
def test_states_of_poker_are_markov_and_hidden(config: GameConfig, states: int) -> None:
    grown = assert_markov(config)
    assert_hidden(grown)
    assert len(grown.states) == states


@pytest.mark.slow
@pytest.mark.one_core
def test_states_of_open_games_are_their_positions() -> None:
    assert len(assert_markov(TIC_TAC_TOE).states) == 4520
    grown = assert_markov(NIM, merges=False)
    assert max(map(len, grown.states.values())) > 5, "histories that lead to one position"


@pytest.mark.parametrize("name", SPIEL)
def test_states_of_open_spiel_are_markov(name: str) -> None:
    pytest.importorskip("pyspiel")
    grown = assert_markov(GameConfig(env=f"open_spiel:{name}"), merges=name == "tic_tac_toe")
    if name.startswith(("kuhn", "leduc", "liars")):
        assert_hidden(grown)


@pytest.mark.parametrize("seed", [0, 4, 6, 9, 13, 17])
def test_states_of_generated_games_are_markov_and_hidden(seed: int) -> None:
    grown = assert_markov(GameConfig(env=f"generated:{seed}"))
    seen = {(node.information_set, text) for text, at in grown.states.items() for node, _ in at}
    assert len(seen) > len(dict(seen)), "some states look alike to a seat"


def texts_of(config: GameConfig, seed: int, *, asks: bool) -> tuple[Any, ...]:
    """Everything that a random game shows and pays; `asks` for the state at each turn, twice."""
    game, rng, turns = Game(config, seed), random.Random(seed), []
    while not game.done:
        if asks:
            outer = random.getstate()
            text = game.whole_state()
        turns.append((game.seat, game.observe(), game.legal_moves(), game.take_cut()))
        if asks:
            assert text == game.whole_state() == game.copied().whole_state()
            assert random.getstate() == outer and int(text.split()[0]) == game.seat
        game.step(rng.choice(game.legal_moves()))
    return turns, game.payoffs, game.outcomes, game.reason


class Careless(CoinPoker):
    """An env that draws, against the rules, when it tells its state."""

    def whole_state(self) -> str:
        return f"{self.coin} {random.random()} "[: len(self.coin)]


CARELESS = GameConfig(env=f"{__name__}:Careless")
PLAYED = [
    *(config for config in MIXED if "CountUp" not in config.env),
    *(GameConfig(env=env, seats=seats, max_turns=30) for env, seats in LISTED),
    *(CARELESS, COIN, NIM),
]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PLAYED), st.integers(0, 2**31))
def test_asking_for_the_state_changes_nothing(config: GameConfig, seed: int) -> None:
    assert texts_of(config, seed, asks=True) == texts_of(config, seed, asks=False)


@pytest.mark.parametrize("library", LIBRARIES)
def test_asking_changes_nothing_in_other_libraries(library: str) -> None:
    pytest.importorskip(library)
    for env in LIBRARIES[library]:
        config = GameConfig(env=env, max_turns=30)
        for seed in range(3):
            assert texts_of(config, seed, asks=True) == texts_of(config, seed, asks=False)


def after(env: str, *actions: str, seats: int = 2, seed: int = 0, **config: Any) -> str:
    """The state after these actions."""
    game = Game(GameConfig(env=env, seats=seats, **config), seed)
    for action in actions:
        game.observe()
        assert not game.step(action).invalid
    return game.whole_state()


@every_row(
    "env, seats, actions, state",
    ("TicTacToe-v0", 2, ["[4]"], "1 0123O5678"),
    ("ConnectFour-v0", 2, ["[col 3]"], "1 0 1 2 3O 4 5 6"),
    ("WildTicTacToe-v0", 2, ["[X 4]"], "1 0123X5678"),
    ("TowerOfHanoi-v0", 1, ["[A C]"], "0 A 3 2, B, C 1 13"),
    ("PigDice-v0", 2, ["[hold]"], "1 0 0 0 100 99"),
)
def test_states_are_positions_with_turns_left(
    env: str, seats: int, actions: list[str], state: str
) -> None:
    assert after(env, *actions, seats=seats) == state


@every_row("env, secret", ("Mastermind-v0", "secret_code"), ("GuessTheNumber-v0", "game_number"))
def test_states_have_secrets_that_no_seat_sees(env: str, secret: str) -> None:
    game = Game(GameConfig(env=env, seats=1), 1)
    kept = game.env.raw.state.game_state[secret]
    text = " ".join(map(str, kept)) if isinstance(kept, list) else str(kept)
    assert game.whole_state().startswith(f"0 {text} ")


def test_dice_of_all_seats_are_in_the_state() -> None:
    game = Game(GameConfig(env="LiarsDice-v0-small", seats=3), 1)
    game.step("[Bid: 1, 3]")
    rolls = game.env.raw.state.game_state["dice_rolls"].values()
    dice = "/".join("".join(map(str, sorted(roll))) for roll in rolls)
    assert game.whole_state() == f"1 {dice} - 1x3"


def test_pending_moves_are_in_the_state() -> None:
    """The first of two simultaneous choices is known to nobody else, and decides what follows."""
    talk = ["hello", "hello", "[cooperate]"]
    env = "IteratedPrisonersDilemma-v0"
    one, other = (after(env, *talk[:2], last) for last in ("[cooperate]", "[defect]"))
    assert one != other
    pytest.importorskip("pettingzoo")
    assert after("pettingzoo:rps_v2", "0") != after("pettingzoo:rps_v2", "1")


def test_envs_without_states_show_what_all_seats_saw() -> None:
    """In negotiation, the first state has the resources of the seat that has not moved yet."""
    game = Game(GameConfig(env="SimpleNegotiation-v0"), 2)
    owned = game.env.raw.state.game_state["player_resources"].values()
    counts = [(name, str(count)) for own in owned for name, count in own.items()]
    assert re.findall(r"\[(\w+)\] +Qty: (\d+)", game.whole_state()) == counts


TOLD = GameInfo(name="Coin", state=lambda env: env.coin)


def test_a_config_can_tell_the_state() -> None:
    game = Game(COIN.model_copy(update={"info": f"{__name__}:TOLD"}), 0)
    assert game.whole_state() == f"0 {game.env.raw.coin}"


def test_the_view_replaces_a_state_that_the_env_cannot_tell() -> None:
    game = Game(COIN, 0)
    assert game.whole_state() == f"0 {game.observe().board}"
    game.step("[bet]")
    assert game.whole_state() == "1 [bet]\nYou do not see the coin."


@every_row(
    "config, tells",
    *((config, True) for config in (KUHN, LEDUC, TIC_TAC_TOE, CARELESS)),
    (GameConfig(env="SimpleNegotiation-v0"), True),
    (COIN.model_copy(update={"info": f"{__name__}:TOLD"}), True),
    (COIN, False),
)
def test_services_know_which_games_tell_their_state(config: GameConfig, tells: bool) -> None:
    assert tells_state(config) is tells
