"""Relabelled games: the same tree, expert and payoffs in words that the game does not have."""

import random
import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mistakes import refused
from tests.helpers.trees import uniform
from unstable.config import GameConfig, InvalidMovesConfig
from unstable.contrib.environments.relabelled import GAMES, NewNames, environment_class
from unstable.games.game import Game
from unstable.solving.best_response import assess
from unstable.solving.tree import Tree, grow

ENVS = {
    "unstable.games.catalog.kuhn:KuhnPoker": {"max_rounds": 1},
    "unstable.games.catalog.leduc:Leduc": {},
    "TicTacToe-v0": {},
}
POKER = r"check|\bbet\b|\bcall\b|fold|\[raise|jack|queen|king|\b[JQK]\b"
OLD = {env: re.compile(r"\b[0-8XO]\b" if env == "TicTacToe-v0" else POKER) for env in ENVS}
EACH = pytest.mark.parametrize("env", ENVS, ids=["kuhn", "leduc", "tic_tac_toe"])


def game(env: str, seed: int | None = None) -> GameConfig:
    name = env if seed is None else f"relabelled:{seed}:{env}"
    return GameConfig(env=name, args=ENVS[env], prompt="compact")


@cache
def tree(env: str, seed: int | None = None) -> Tree:
    return grow(game(env, seed))


def test_players_keep_their_numbers() -> None:
    names = environment_class("3:TicTacToe-v0").names
    assert names.text("Player 1 placed an X in cell 1") == (
        f"Player 1 placed an {names.new['X']} in cell {names.new['1']}"
    )


@EACH
def test_uniform_play_is_as_exploitable(env: str) -> None:
    own, other = tree(env), tree(env, 3)
    assert (own.nodes, len(own.decisions)) == (other.nodes, len(other.decisions))
    expected = assess(own, uniform(own), forfeits=False)
    found = assess(other, uniform(other), forfeits=False)
    assert found.exploitability == pytest.approx(expected.exploitability, abs=1e-12)
    assert found.values == pytest.approx(expected.values, abs=1e-12)


@EACH
@pytest.mark.parametrize("seed", [1, 8])
def test_expert_plays_alike_and_no_old_word_is_seen(env: str, seed: int) -> None:
    rng, names = random.Random(seed), environment_class(f"{seed}:{env}").names
    for number in range(6):
        own, other = Game(game(env), number), Game(game(env, seed), number)
        while not own.done:
            assert own.seat == other.seat
            legal = own.legal_moves()
            assert other.legal_moves() == [*map(names.text, legal)]
            shares = [each.info.expert.moves(each.env.raw) for each in (own, other)]
            assert shares[1] == names.moves(shares[0])
            seen = other.observe()
            texts = (seen.rules, seen.brief, seen.position, seen.board, *seen.events)
            assert not [t for t in texts if OLD[env].search(re.sub(r"player \d", "", t))]
            move = rng.choice(legal)
            own.step(move)
            other.step(names.text(move))
        assert other.done and other.payoffs == own.payoffs


@EACH
def test_old_words_are_refused_as_often_as_allowed(env: str) -> None:
    config = game(env, 1).model_copy(update={"invalid_moves": InvalidMovesConfig(allowed=2)})
    own, other = Game(game(env), 0), Game(config, 0)
    old = own.legal_moves()[0]
    for _ in range(2):
        result = other.step(old)
        assert result.invalid and not result.done
        assert other.observe().notice.startswith("The action must be one of ")
    assert other.step(old).done and other.forfeit == own.seat


@given(st.integers(0, 10**6), st.sampled_from(sorted(GAMES)))
def test_actions_are_read_back(seed: int, name: str) -> None:
    names = NewNames(GAMES[name], seed)
    assert len(set(names.new.values())) == len(names.new)
    for old in names.new:
        assert names.action(f"[{names.text(old)}]") == f"[{old}]"


def test_other_games_and_wrong_names_are_refused() -> None:
    refused("write relabelled:SEED:ENV", environment_class, "TicTacToe-v0")
    refused("no other words for it", environment_class, "3:Nim-v0")
