"""Test experts: perfect or strong play without hidden information, and true reasons."""

import copy
import random
from collections.abc import Iterator
from functools import reduce
from itertools import permutations, product
from operator import xor
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.helpers.rows import every_row
from unstable.collectors.players.programs import ExpertPlayer
from unstable.config import GameConfig
from unstable.games.catalog.connect_four import DEPTH
from unstable.games.game import Game
from unstable.games.services import game_info

KUHN = "unstable.games.catalog.kuhn:KuhnPoker"
GAMES = ["TicTacToe-v0", "WildTicTacToe-v0", "Nim-v0-large", "ConnectFour-v0", KUHN]
QUIET = settings(deadline=None, derandomize=True, max_examples=60)


def new_game(env: str, seed: int = 0, seats: int = 2, **args: object) -> Game:
    return Game(GameConfig(env=env, args=args, seats=seats), seed)


def after(game: Game, action: str) -> Game:
    following = game.copied()
    assert not following.step(action).invalid
    return following


def board(game: Game) -> str:
    return str(game.env.raw.state.game_state["board"]) + str(game.seat)


def wins(game: Game, action: str, seat: int | None = None) -> bool:
    """Return True if an action wins at once, for the seat to move or for `seat` in its place."""
    seat = game.seat if seat is None else seat
    moved = game.copied()
    moved.env.raw.state.current_player_id = seat
    moved.step(action)
    return moved.done and moved.outcomes[seat] == 1


def random_positions(env: str, games: int, **args: Any) -> Iterator[Game]:
    for seed in range(games):
        rng, game = random.Random(seed), new_game(env, seed, **args)
        while not game.done:
            yield game
            game.step(rng.choice(game.legal_moves()))


def outcomes_against_all_replies(env: str, expert_seat: int) -> set[float]:
    found, seen, games = set(), set(), [new_game(env)]
    while games:
        game = games.pop()
        for action in game.expert_moves() if game.seat == expert_seat else game.legal_moves():
            following = after(game, action)
            if following.done:
                found.add(following.outcomes[expert_seat])
            elif board(following) not in seen:
                seen.add(board(following))
                games.append(following)
    return found


def test_tic_tac_toe_experts_are_optimal_and_uniform():
    assert outcomes_against_all_replies("TicTacToe-v0", 0) == {0, 1}
    assert outcomes_against_all_replies("TicTacToe-v0", 1) == {0, 1}
    assert outcomes_against_all_replies("WildTicTacToe-v0", 0) == {1}
    game = new_game("TicTacToe-v0")
    assert game.expert_moves() == pytest.approx({f"[{cell}]": 1 / 9 for cell in range(9)})
    corners = dict.fromkeys(("[0]", "[2]", "[6]", "[8]"), 1 / 4)
    assert after(game, "[4]").expert_moves() == corners


@QUIET
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 2**32))
def test_nim_expert_wins_from_nonzero_nim_sum(piles, seed):
    assume(reduce(xor, piles))
    rng, game = random.Random(seed), new_game("Nim-v0", piles=piles)
    while not game.done:
        game.step(rng.choice(list(game.expert_moves()) if game.seat == 0 else game.legal_moves()))
    assert game.outcomes == [1, -1]


def test_connect_four_expert_wins_then_blocks():
    won = blocked = 0
    for game in random_positions("ConnectFour-v0", 40):
        winning = {action for action in game.legal_moves() if wins(game, action)}
        losing = {action for action in game.legal_moves() if wins(game, action, 1 - game.seat)}
        if winning:
            assert game.expert_moves().keys() == winning
            won += 1
        elif losing:
            assert game.expert_moves().keys() <= losing
            blocked += 1
    assert won > 10 and blocked > 10


def test_connect_four_expert_beats_random():
    for seed in range(20):
        rng, game = random.Random(seed), new_game("ConnectFour-v0", seed)
        while not game.done:
            moves = game.expert_moves() if game.seat == seed % 2 else game.legal_moves()
            game.step(rng.choice(list(moves)))
        assert game.outcomes[seed % 2] == 1


def worth(game: Game, known: dict[str, int]) -> int:
    """Worth to the seat to move, by trying everything."""
    if (key := board(game)) not in known:
        known[key] = max(
            int(following.outcomes[game.seat]) if following.done else -worth(following, known)
            for following in (after(game, action) for action in game.legal_moves())
        )
    return known[key]


def test_connect_four_expert_is_perfect_within_depth():
    known: dict[str, int] = {}
    tried = 0
    for game in random_positions("ConnectFour-v0", 25, num_rows=4, num_cols=5):
        if 20 - game.turns > DEPTH:
            continue
        best = worth(game, known)
        for action in game.expert_moves():
            following = after(game, action)
            mine = following.outcomes[game.seat] if following.done else -worth(following, known)
            assert mine == best
            tried += len(game.legal_moves()) > 1
    assert tried > 20


def kuhn_game(history: str, card: int, other: int) -> Game:
    game = new_game(KUHN, max_rounds=1)
    opener = game.seat
    mover = opener if len(history) % 2 == 0 else 1 - opener
    game.env.raw.state.game_state["player_cards"] = {mover: card, 1 - mover: other}
    for step in history:
        game.step({"c": "[check]", "b": "[bet]"}[step])
    assert game.seat == mover
    return game


def test_kuhn_expert_ignores_opponents_card():
    """Moves do not depend on the other's card; tests/solving/test_exploit.py covers exploits."""
    for card, history in product(range(3), ("", "c", "b", "cb")):
        one, other = (kuhn_game(history, card, each).expert_moves() for each in {0, 1, 2} - {card})
        assert one == other


async def test_expert_player_samples_mixed_strategy():

    game = kuhn_game("", 0, 2)
    observation, player = game.observe(), ExpertPlayer()
    played = [(await player.act(observation, game, seed)).action for seed in range(600)]
    assert set(played) == {"[bet]", "[check]"}
    assert 150 < played.count("[bet]") < 250


def hanoi_distances(disks: int) -> dict[str, int]:
    """Moves from each position to the solved one, by going back from it breadth first."""
    start = {"A": [], "B": [], "C": list(range(disks, 0, -1))}
    distance, border = {str(start): 0}, [start]
    for towers in border:
        for source, target in permutations("ABC", 2):
            if towers[source] and min(towers[target], default=disks + 1) > towers[source][-1]:
                back = copy.deepcopy(towers)
                back[target].append(back[source].pop())
                if str(back) not in distance:
                    distance[str(back)] = distance[str(towers)] + 1
                    border.append(back)
    return distance


def test_hanoi_expert_is_shortest_from_any_position():
    distance = hanoi_distances(4)
    assert len(distance) == 3**4
    for seed in range(20):
        rng, args = random.Random(seed), {"num_disks": 4, "max_turns": 99}
        game = new_game("TowerOfHanoi-v0", seats=1, **args)
        for _ in range(seed):
            game.step(rng.choice(game.legal_moves()))
        left = distance[str(game.env.raw.state.game_state["towers"])]
        for _ in range(left):
            assert not game.done
            (action,) = game.expert_moves()
            assert "shortest solution" in game.expert_reason(action)
            game.step(action)
        assert game.outcomes == [1]


@every_row("env", *GAMES)
def test_expert_moves_are_legal_and_reasons_state_wins_in_a_sentence(env):
    for game in random_positions(env, 8):
        mix = game.expert_moves()
        assert set(mix) <= set(game.legal_moves())
        assert sum(mix.values()) == pytest.approx(1) and min(mix.values()) > 0
        for action in game.legal_moves():
            reason = game.expert_reason(action)
            assert reason.endswith(".") and reason.count(".") == 1 and "\n" not in reason
            assert reason.isascii()
            if env != KUHN:
                assert reason.endswith("and wins.") == wins(game, action)


@every_row("env", "TicTacToe-v0", "ConnectFour-v0")
def test_reasons_are_true(env):
    said = {"blocks": 0, "threatens": 0, "cannot": 0, "can complete": 0}
    for game in random_positions(env, 4 if env == "ConnectFour-v0" else 12):
        seat = game.seat
        for action in game.legal_moves():
            reason = game.expert_reason(action)
            said = {word: count + (word in reason) for word, count in said.items()}
            if wins(game, action):
                continue
            assert ("blocks" in reason) == wins(game, action, 1 - seat)
            following = after(game, action)
            replies = [] if following.done else following.legal_moves()
            mine = sum(wins(following, reply, seat) for reply in replies)
            theirs = sum(wins(following, reply) for reply in replies)
            if "threatens" in reason and env == "ConnectFour-v0":
                assert f"in {mine} columns" in reason or mine == 1 and "one column" in reason
            elif "threatens" in reason:
                assert mine > 1
            if "cannot" in reason:
                assert theirs == 0
            if "can complete" in reason:
                assert theirs > 0
    expected = 4 if env == "ConnectFour-v0" else 2
    assert sum(count > 0 for count in said.values()) == expected


def test_nim_reasons_state_correct_nim_sums():
    for game in random_positions("Nim-v0-large", 10):
        for action, following in ((a, after(game, a)) for a in game.legal_moves()):
            piles = following.env.raw.state.game_state["piles"]
            if any(piles):
                reason = game.expert_reason(action)
                assert f"{' xor '.join(map(str, piles))} = {reduce(xor, piles)}," in reason
                assert reason.endswith("loses.") == (reduce(xor, piles) == 0)


def test_missing_expert_is_reported_in_one_line():
    for env in ("KuhnPoker-v0", "PigDice-v0"):
        assert game_info(GameConfig(env=env)).expert is None
        with pytest.raises(ValueError, match=f"{env} has no expert; games with an expert: TicTac"):
            new_game(env).expert_moves()
    assert all(game_info(GameConfig(env=env)).expert for env in GAMES)
